// The batches on one device: how long each has had it, and what is left.
//
// Batches in flight at the same time share the device: while n of them are, each
// is counted a n-th of the time that passes. So the times of all batches add up
// to the time that the device was busy, however they overlapped, and a batch is
// not taken to be slow because another one was beside it.
#ifndef ATTENTION_SERVER_SCHEDULING_DEVICE_LOAD_H_
#define ATTENTION_SERVER_SCHEDULING_DEVICE_LOAD_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace attention {

// Not thread-safe.
class DeviceLoad {
 public:
  explicit DeviceLoad(int slot_count) : slot_count_(slot_count) {
    running_.reserve(slot_count);
  }

  int free_slots() const {
    return slot_count_ - static_cast<int>(running_.size());
  }

  // A batch starts that will take `predicted`. Returns its id.
  uint64_t Start(absl::Duration predicted, absl::Time now);

  struct Finished {
    absl::Duration predicted;
    absl::Duration taken;  // its share of the device's time
  };
  // The batch of that id, which is in flight, has ended.
  Finished Finish(uint64_t id, absl::Time now);

  // Predicted time of what is in flight that has not passed yet.
  absl::Duration Remaining(absl::Time now) const;

  // The earliest that a slot can become free if the batches in flight take only
  // the `margin`-th part of their predictions: 0 when one is free.
  absl::Duration EarliestSlot(double margin, absl::Time now) const;

 private:
  struct Running {
    uint64_t id;
    absl::Duration predicted;
    absl::Duration shared_at_start;
  };

  // What a batch would have been counted that has been there for ever.
  absl::Duration Shared(absl::Time now) const;
  void Advance(absl::Time now);

  const int slot_count_;
  uint64_t last_id_ = 0;
  std::vector<Running> running_;  // at most slot_count_
  absl::Duration shared_;
  absl::Time advanced_ = absl::InfinitePast();  // shared_ is of then
};

}  // namespace attention

#endif  // ATTENTION_SERVER_SCHEDULING_DEVICE_LOAD_H_
