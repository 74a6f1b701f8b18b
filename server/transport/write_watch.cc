#include "server/transport/write_watch.h"

#include "server/transport/server_call.h"

namespace attention {

absl::Duration TransferTime(size_t bytes) {
  constexpr double kBytesPerSecond = 1 << 20;
  return absl::Seconds(static_cast<double>(bytes) / kBytesPerSecond);
}

void WriteWatch::Begin(ServerCall* call, size_t bytes) {
  const absl::Time deadline = clock_->Now() + patience_ + TransferTime(bytes);
  absl::MutexLock lock(&mutex_);
  deadlines_[call] = deadline;
}

void WriteWatch::End(ServerCall* call) {
  absl::MutexLock lock(&mutex_);
  deadlines_.erase(call);
}

void WriteWatch::CancelOverdue() {
  const absl::Time now = clock_->Now();
  // Under the lock, so that the calls stay.
  absl::MutexLock lock(&mutex_);
  for (const auto& [call, deadline] : deadlines_) {
    if (deadline <= now) call->TryCancel();
  }
}

int64_t WriteWatch::under_way() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(deadlines_.size());
}

}  // namespace attention
