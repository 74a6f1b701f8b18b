// What the scheduler takes, and what it says about the time that waits.
#include <algorithm>
#include <optional>

#include "absl/container/inlined_vector.h"
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
  if (work.required_device != kAnyDevice) {
    const int device = work.required_device;
    if (device < 0 || static_cast<size_t>(device) >= states_.size()) {
      label = "no_device";
      return NoSuchDevice(device, states_.size());
    }
    if (states_[device].failed) {
      label = "device_failed";
      return RequiredDeviceFailed(*devices_[device]);
    }
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
    const absl::Duration backlog = PredictedBacklog(work.required_device);
    if (options_.max_queued_time > absl::ZeroDuration() &&
        backlog >= options_.max_queued_time) {
      label = "queue_full_time";
      return QueueFull("what waits will take ", absl::FormatDuration(backlog),
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
  const size_t cost_class = KindOf(work).cost_class();
  absl::Duration slot = absl::InfiniteDuration();
  absl::Duration own = absl::InfiniteDuration();
  absl::Duration queued = absl::InfiniteDuration();
  int64_t devices = 0;
  const WorkCost ahead = queues_.CostAhead(work);
  for (size_t i = 0; i < states_.size(); ++i) {
    const DeviceState& state = states_[i];
    if (!MayRun(i, work.required_device)) continue;
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

bool DeviceScheduler::MayRun(size_t device, int required_device) const {
  return !states_[device].failed &&
         (required_device == kAnyDevice ||
          static_cast<size_t>(required_device) == device);
}

absl::Duration DeviceScheduler::PredictedBacklog() const {
  absl::Duration backlog = PredictedBacklog(kAnyDevice);
  for (size_t i = 0; i < states_.size(); ++i) {
    if (states_[i].failed) continue;
    backlog = std::max(backlog, queues_.Predicted(i, static_cast<int>(i)));
  }
  return backlog;
}

// Each device does what requires it, and all share the rest by their speed such
// that they end together: as water that fills a vessel, whose ground is what
// each has of its own.
absl::Duration DeviceScheduler::PredictedBacklog(int device) const {
  if (queues_.size() == 0) return absl::ZeroDuration();
  struct Share {
    absl::Duration own;
    absl::Duration rest;  // if it did all of it
  };
  absl::InlinedVector<Share, 8> shares;
  for (size_t i = 0; i < states_.size(); ++i) {
    if (states_[i].failed) continue;
    shares.push_back({queues_.Predicted(i, static_cast<int>(i)),
                      queues_.Predicted(i, kAnyDevice)});
  }
  if (shares.empty()) return absl::InfiniteDuration();
  std::sort(shares.begin(), shares.end(),
            [](const Share& a, const Share& b) { return a.own < b.own; });
  // All of them have something of the rest, or none.
  absl::Duration level;
  if (shares.front().rest > absl::ZeroDuration()) {
    double rate = 0;    // of those below the level
    double volume = 1;  // the rest, and what it would be to fill their ground
    for (const Share& share : shares) {
      if (rate > 0 && share.own >= level) break;
      const double speed = 1 / absl::ToDoubleSeconds(share.rest);
      rate += speed;
      volume += absl::ToDoubleSeconds(share.own) * speed;
      level = absl::Seconds(volume / rate);
    }
  }
  return device == kAnyDevice
             ? level
             : std::max(level, queues_.Predicted(device, device));
}

absl::Duration DeviceScheduler::RetryDelay() const {
  absl::MutexLock lock(&mutex_);
  if (!all_failed_.ok()) return kMaxRetryDelay;
  return std::clamp(PredictedBacklog() / 2, kMinRetryDelay, kMaxRetryDelay);
}

}  // namespace attention
