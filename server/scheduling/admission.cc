// What the scheduler takes, and what it says about the time that waits.
#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "server/engine/error_reason.h"
#include "server/scheduling/device_scheduler.h"
#include "server/scheduling/exit_status.h"

namespace attention {
namespace {

constexpr absl::Duration kMinRetryDelay = absl::Milliseconds(10);
constexpr absl::Duration kMaxRetryDelay = absl::Seconds(5);

template <typename... Parts>
absl::Status QueueFull(const Parts&... parts) {
  return WithReason(absl::ResourceExhaustedError(
                        absl::StrCat("the queue is full: ", parts...)),
                    error_reason::kQueueFull);
}

}  // namespace

absl::Status DeviceScheduler::CheckAdmission(const AttentionWork& work,
                                             const WorkCost& cost,
                                             absl::Time now,
                                             const char*& label) const {
  const auto bytes = static_cast<size_t>(cost.bytes);
  if (bytes > options_.max_request_bytes) {
    label = "too_large";
    return WithReason(
        absl::ResourceExhaustedError(
            absl::StrCat("the request's tensors, in and out, may have at most ",
                         options_.max_request_bytes, " bytes; got ", bytes)),
        error_reason::kRequestTooLarge);
  }
  if (draining_) {
    label = "draining";
    return DrainingStatus();
  }
  if (!all_failed_.ok()) {
    label = "device_failed";
    return all_failed_;
  }
  if (work.deadline <= now) {
    label = "deadline";
    return DeadlineStatus("passed before the request was queued");
  }
  if (queues_.size() >= static_cast<size_t>(options_.max_queued_requests)) {
    label = "queue_full_requests";
    return QueueFull(queues_.size(), " requests wait of at most ",
                     options_.max_queued_requests);
  }
  // An empty queue takes any request: one larger than the bound could otherwise
  // never run, however often it is retried.
  if (queues_.size() > 0) {
    if (bytes > options_.max_queued_bytes -
                    std::min(queues_.bytes(), options_.max_queued_bytes)) {
      label = "queue_full_bytes";
      return QueueFull(queues_.bytes(), " bytes wait of at most ",
                       options_.max_queued_bytes, ", the request has ", bytes);
    }
    if (options_.max_queued_time > absl::ZeroDuration() &&
        PredictedBacklog() >= options_.max_queued_time) {
      label = "queue_full_time";
      return QueueFull("what waits will take ",
                       absl::FormatDuration(PredictedBacklog()),
                       " by prediction, of at most ",
                       absl::FormatDuration(options_.max_queued_time));
    }
  }
  if (work.deadline != absl::InfiniteFuture()) {
    const absl::Duration least = LeastTime(work, cost, now);
    if (least > work.deadline - now) {
      label = "deadline_predicted";
      return DeadlineStatus(absl::StrCat(
          "cannot be met: ", absl::FormatDuration(work.deadline - now),
          " are left, and what is ahead of the request and the request itself "
          "will take at least ",
          absl::FormatDuration(least), " by prediction"));
    }
  }
  return absl::OkStatus();
}

absl::Duration DeviceScheduler::LeastTime(const AttentionWork& work,
                                          const WorkCost& cost,
                                          absl::Time now) const {
  const size_t cost_class = CostClassOf(work.config);
  absl::Duration slot = absl::InfiniteDuration();
  absl::Duration own = absl::InfiniteDuration();
  absl::Duration queued = absl::InfiniteDuration();
  int64_t devices = 0;
  const WorkCost ahead = queues_.CostAhead(work);
  for (size_t i = 0; i < states_.size(); ++i) {
    const DeviceState& state = states_[i];
    if (state.failed) continue;
    const std::optional<double> margin = cost_model_.Margin(i, cost_class);
    if (!margin.has_value()) return absl::ZeroDuration();
    const absl::Duration launch = cost_model_.Launch(i, cost_class);
    ++devices;
    slot = std::min(slot, state.load.EarliestSlot(*margin, now));
    own = std::min(own,
                   (launch + cost_model_.Added(i, cost_class, cost)) / *margin);
    queued =
        std::min(queued, cost_model_.Added(i, cost_class, ahead) / *margin);
  }
  return slot + queued / devices + own;
}

absl::Duration DeviceScheduler::PredictedBacklog() const {
  if (queues_.size() == 0) return absl::ZeroDuration();
  // Devices share the work by their speed.
  double rate = 0;
  for (size_t i = 0; i < states_.size(); ++i) {
    if (states_[i].failed) continue;
    rate += 1 / absl::ToDoubleSeconds(queues_.Predicted(i));
  }
  return rate > 0 ? absl::Seconds(1 / rate) : absl::InfiniteDuration();
}

absl::Duration DeviceScheduler::RetryDelay() const {
  absl::MutexLock lock(&mutex_);
  if (!all_failed_.ok()) return kMaxRetryDelay;
  return std::clamp(PredictedBacklog() / 2, kMinRetryDelay, kMaxRetryDelay);
}

}  // namespace attention
