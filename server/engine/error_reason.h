// Why a request failed, beside the status code that says how.
//
// Several causes share a code (a full queue, a request that could never fit and
// a full device are all RESOURCE_EXHAUSTED) but call for different reactions.
// The reason travels inside absl::Status as a payload; the RPC layer turns it
// into google.rpc.ErrorInfo with the same spelling.
//
//   return WithReason(absl::ResourceExhaustedError(message),
//                     error_reason::kQueueFull);
//   ...
//   if (ReasonOf(status) == error_reason::kQueueFull) AskForRetry();
#ifndef ATTENTION_SERVER_ENGINE_ERROR_REASON_H_
#define ATTENTION_SERVER_ENGINE_ERROR_REASON_H_

#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace attention {

// Part of the public API: callers see these in ErrorInfo.reason.
namespace error_reason {
inline constexpr std::string_view kInvalidRequest = "INVALID_REQUEST";
inline constexpr std::string_view kUnsupported = "UNSUPPORTED";
inline constexpr std::string_view kQueueFull = "QUEUE_FULL";
inline constexpr std::string_view kRequestTooLarge = "REQUEST_TOO_LARGE";
inline constexpr std::string_view kOutOfMemory = "OUT_OF_MEMORY";
inline constexpr std::string_view kDeadlineExceeded = "DEADLINE_EXCEEDED";
inline constexpr std::string_view kCancelled = "CANCELLED";
inline constexpr std::string_view kDraining = "DRAINING";
inline constexpr std::string_view kDeviceFailed = "DEVICE_FAILED";
inline constexpr std::string_view kUploadTakenOver = "UPLOAD_TAKEN_OVER";
inline constexpr std::string_view kStreamIdle = "STREAM_IDLE";
inline constexpr std::string_view kInternal = "INTERNAL";

inline constexpr std::string_view kAll[] = {
    kInvalidRequest, kUnsupported,      kQueueFull,  kRequestTooLarge,
    kOutOfMemory,    kDeadlineExceeded, kCancelled,  kDraining,
    kDeviceFailed,   kUploadTakenOver,  kStreamIdle, kInternal};
}  // namespace error_reason

// Type URL of the payload. Its content is the bare reason, in ASCII.
inline constexpr absl::string_view kErrorReasonUrl =
    "attention.v1/error-reason";

// `status` with its reason set to one of error_reason::kAll, replacing any
// earlier one. An OK status carries no payload and is returned as it is.
inline absl::Status WithReason(absl::Status status, std::string_view reason) {
  status.SetPayload(kErrorReasonUrl, absl::Cord(absl::string_view(
                                         reason.data(), reason.size())));
  return status;
}

// What the caller has to mend: INVALID_ARGUMENT with kInvalidRequest.
inline absl::Status InvalidRequest(absl::string_view message) {
  return WithReason(absl::InvalidArgumentError(message),
                    error_reason::kInvalidRequest);
}

// The reason, as one of error_reason::kAll; empty when there is none. The view
// has static lifetime.
inline std::string_view ReasonOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kErrorReasonUrl);
  if (!payload.has_value()) return {};
  for (std::string_view reason : error_reason::kAll) {
    if (*payload == absl::string_view(reason.data(), reason.size())) {
      return reason;
    }
  }
  return {};
}

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_ERROR_REASON_H_
