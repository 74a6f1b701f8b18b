// Deficit round robin: who is next, by the device time that each has had.
//
// Members stand in a line. A visit pays a quantum off a member's debt; the first
// one visited that owes nothing is next. It then runs a batch, owes the time
// that the batch takes, and goes to the back. So members with work share the
// device's time equally, whatever their batches cost, and whoever has had
// nothing yet waits for one turn of each of those ahead in the line.
#ifndef ATTENTION_SERVER_SCHEDULING_TURNS_H_
#define ATTENTION_SERVER_SCHEDULING_TURNS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <list>

#include "absl/time/time.h"

namespace attention {

// What a visit pays off: less than a launch takes, so that turns are as fine as
// batches.
inline constexpr absl::Duration kTurnQuantum = absl::Microseconds(10);
// Nobody owes more than this, or than the last batch if that is more: what was
// used long ago does not count for ever.
inline constexpr absl::Duration kMaxDebt = absl::Seconds(1);

struct Debt {
  // Below 0, and at least -kTurnQuantum, what the last visit paid too much: it
  // counts for the next batch.
  absl::Duration owed;

  bool is_paid() const { return owed <= absl::ZeroDuration(); }
  void Add(absl::Duration time) {
    owed = std::min(owed + time, std::max(kMaxDebt, time));
  }
  void Pay(absl::Duration time) { owed = std::max(owed - time, -kTurnQuantum); }
};

// The member of `line`, a std::list, that is next among those for which `ready` holds; end()
// when there is none. Members have `Debt debt` and `empty()`: nothing waits.
// Empty ones stay until their debt is paid and are then given to `erase`; ones
// that have work but are not ready keep their place and their debt.
template <typename List, typename Ready, typename Erase>
typename List::iterator NextTurn(List& line, Ready ready, Erase erase) {
  using Member = typename List::value_type;
  const auto is_ready = [&](const Member& m) { return !m.empty() && ready(m); };
  if (std::none_of(line.begin(), line.end(), is_ready)) return line.end();
  for (;;) {
    size_t left = line.size();
    for (auto it = line.begin(); left > 0; --left) {
      const auto member = it++;
      if (!member->empty() && !ready(*member)) continue;
      member->debt.Pay(kTurnQuantum);
      if (member->debt.is_paid() && !member->empty()) return member;
      if (member->debt.is_paid()) {
        erase(member);
      } else {
        line.splice(line.end(), line, member);
      }
    }
    // Nobody: all rounds at once that would end the same way.
    int64_t rounds = std::numeric_limits<int64_t>::max();
    for (const Member& member : line) {
      if (!is_ready(member)) continue;
      absl::Duration rest;
      const int64_t full = absl::IDivDuration(member.debt.owed, kTurnQuantum,
                                              &rest);
      rounds = std::min(rounds, rest > absl::ZeroDuration() ? full : full - 1);
    }
    for (auto it = line.begin(); it != line.end();) {
      const auto member = it++;
      if (!member->empty() && !ready(*member)) continue;
      member->debt.Pay(kTurnQuantum * rounds);
      if (member->empty() && member->debt.is_paid()) erase(member);
    }
  }
}

}  // namespace attention

#endif  // ATTENTION_SERVER_SCHEDULING_TURNS_H_
