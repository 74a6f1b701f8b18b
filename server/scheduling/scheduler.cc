#include "server/scheduling/scheduler.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/scheduling/device_scheduler.h"

namespace attention {
namespace {

template <typename T>
absl::Status CheckAtLeastOne(absl::string_view name, T value) {
  if (value >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must be at least 1; got ", value));
}

absl::Status CheckDuration(absl::string_view name, absl::Duration value) {
  if (value >= absl::ZeroDuration() && value != absl::InfiniteDuration()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must be finite and not negative; got ",
                   absl::FormatDuration(value)));
}

absl::Status Validate(const Scheduler::Options& options) {
  for (const absl::Status& status :
       {CheckAtLeastOne("max_batch_requests", options.max_batch_requests),
        CheckAtLeastOne("max_batch_bytes", options.max_batch_bytes),
        CheckAtLeastOne("max_batch_tokens", options.max_batch_tokens),
        CheckAtLeastOne("max_queued_requests", options.max_queued_requests),
        CheckAtLeastOne("max_queued_bytes", options.max_queued_bytes),
        CheckAtLeastOne("max_request_bytes", options.max_request_bytes),
        CheckAtLeastOne("max_tenants", options.max_tenants),
        CheckDuration("max_queue_delay", options.max_queue_delay),
        CheckDuration("max_batch_time", options.max_batch_time),
        CheckDuration("max_inline_time", options.max_inline_time),
        CheckDuration("max_queued_time", options.max_queued_time)}) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Scheduler>> Scheduler::Create(
    Options options, std::vector<Device*> devices, Metrics* metrics,
    Clock* clock) {
  if (absl::Status status = Validate(options); !status.ok()) return status;
  if (devices.empty()) {
    return absl::InvalidArgumentError("a scheduler needs at least one device");
  }
  for (const Device* device : devices) {
    if (device->slot_count() < 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "device ", device->description().name,
          " must have at least 1 slot; got ", device->slot_count()));
    }
  }
  return std::make_unique<DeviceScheduler>(options, std::move(devices), metrics,
                                           clock);
}

}  // namespace attention
