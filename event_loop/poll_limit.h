// How long a thread looks for the next event before it sleeps.
#ifndef ATTENTION_EVENT_LOOP_POLL_LIMIT_H_
#define ATTENTION_EVENT_LOOP_POLL_LIMIT_H_

#include <atomic>

#include "absl/time/time.h"

namespace attention {

// A fixed time, and several times as long while events come within that: to
// sleep and be woken costs a caller of such calls a good part of each, while a
// processor is kept busy for no longer than it takes to see that they have
// ended. Thread-safe; whoever is last decides.
class PollLimit {
 public:
  // 0: no polling at all.
  explicit PollLimit(absl::Duration base) : base_(base) {}

  absl::Duration base() const { return base_; }
  absl::Duration Get() const {
    return soon_.load(std::memory_order_relaxed) ? longest() : base_;
  }

  // An event has come so long after the wait for it began.
  void Note(absl::Duration waited) {
    soon_.store(waited <= longest(), std::memory_order_relaxed);
  }

 private:
  // Calls longer than that gain little.
  absl::Duration longest() const { return 5 * base_; }

  const absl::Duration base_;
  std::atomic<bool> soon_ = false;
};

}  // namespace attention

#endif  // ATTENTION_EVENT_LOOP_POLL_LIMIT_H_
