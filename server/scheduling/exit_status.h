// The answers to works that do not run.
#ifndef ATTENTION_SERVER_SCHEDULING_EXIT_STATUS_H_
#define ATTENTION_SERVER_SCHEDULING_EXIT_STATUS_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/engine/device.h"
#include "server/engine/error_reason.h"

namespace attention {

// Reads "the deadline <how>".
inline absl::Status DeadlineStatus(absl::string_view how) {
  return WithReason(
      absl::DeadlineExceededError(absl::StrCat("the deadline ", how)),
      error_reason::kDeadlineExceeded);
}

inline absl::Status DrainingStatus() {
  return WithReason(absl::UnavailableError("the server is shutting down"),
                    error_reason::kDraining);
}

// Of work that only `device` could have computed.
inline absl::Status RequiredDeviceFailed(const Device& device) {
  return WithReason(absl::UnavailableError(absl::StrCat(
                        "the device ", device.description().name,
                        ", whose memory holds the request's tensors, has "
                        "failed: ",
                        device.health().message())),
                    error_reason::kDeviceFailed);
}

inline absl::Status NoSuchDevice(int device, size_t device_count) {
  return WithReason(
      absl::InvalidArgumentError(absl::StrCat("required_device must be below ",
                                              device_count, "; got ", device)),
      error_reason::kInvalidRequest);
}

}  // namespace attention

#endif  // ATTENTION_SERVER_SCHEDULING_EXIT_STATUS_H_
