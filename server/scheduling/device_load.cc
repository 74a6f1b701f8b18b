#include "server/scheduling/device_load.h"

namespace attention {

absl::Duration DeviceLoad::Shared(absl::Time now) const {
  // The clock may have been set back.
  if (running_.empty() || now <= advanced_) return shared_;
  return shared_ + (now - advanced_) / static_cast<int64_t>(running_.size());
}

void DeviceLoad::Advance(absl::Time now) {
  shared_ = Shared(now);
  advanced_ = now;
}

uint64_t DeviceLoad::Start(absl::Duration predicted, absl::Time now) {
  Advance(now);
  running_.push_back({++last_id_, predicted, shared_});
  return last_id_;
}

DeviceLoad::Finished DeviceLoad::Finish(uint64_t id, absl::Time now) {
  Advance(now);
  const auto batch = std::find_if(running_.begin(), running_.end(),
                                  [id](const Running& r) { return r.id == id; });
  const Finished finished = {batch->predicted,
                             shared_ - batch->shared_at_start};
  running_.erase(batch);
  return finished;
}

absl::Duration DeviceLoad::Remaining(absl::Time now) const {
  const absl::Duration shared = Shared(now);
  absl::Duration remaining;
  for (const Running& batch : running_) {
    remaining += std::max(absl::ZeroDuration(),
                          batch.predicted - (shared - batch.shared_at_start));
  }
  return remaining;
}

absl::Duration DeviceLoad::EarliestSlot(double margin, absl::Time now) const {
  if (free_slots() > 0) return absl::ZeroDuration();
  const absl::Duration shared = Shared(now);
  absl::Duration earliest = absl::InfiniteDuration();
  for (const Running& batch : running_) {
    earliest = std::min(earliest, batch.predicted / margin -
                                      (shared - batch.shared_at_start));
  }
  return std::max(earliest, absl::ZeroDuration());
}

}  // namespace attention
