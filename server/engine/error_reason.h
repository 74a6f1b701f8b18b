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

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

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
inline constexpr std::string_view kSessionNotFound = "SESSION_NOT_FOUND";
inline constexpr std::string_view kWrongReplica = "WRONG_REPLICA";
inline constexpr std::string_view kPositionTaken = "POSITION_TAKEN";
inline constexpr std::string_view kPositionGap = "POSITION_GAP";
inline constexpr std::string_view kKeysFreed = "KEYS_FREED";
inline constexpr std::string_view kSessionLost = "SESSION_LOST";
inline constexpr std::string_view kQuotaExceeded = "QUOTA_EXCEEDED";
inline constexpr std::string_view kCacheFull = "CACHE_FULL";
inline constexpr std::string_view kInternal = "INTERNAL";

inline constexpr std::string_view kAll[] = {
    kInvalidRequest, kUnsupported,      kQueueFull,   kRequestTooLarge,
    kOutOfMemory,    kDeadlineExceeded, kCancelled,   kDraining,
    kDeviceFailed,   kUploadTakenOver,  kStreamIdle,  kSessionNotFound,
    kWrongReplica,   kPositionTaken,    kPositionGap, kKeysFreed,
    kSessionLost,    kQuotaExceeded,    kCacheFull,   kInternal};
}  // namespace error_reason

// Keys of facts that go with a reason, part of the public API too: callers see
// them in ErrorInfo.metadata.
namespace error_fact {
inline constexpr absl::string_view kReplica = "replica";  // kWrongReplica
// kPositionTaken, kPositionGap: tokens that the layer has
inline constexpr absl::string_view kTokenCount = "token_count";
}  // namespace error_fact

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

// Begins the type URL of a fact; its key ends it. The content is its value.
inline constexpr absl::string_view kErrorFactUrl = "attention.v1/error-fact/";

// `status` with a fact for programs, in addition to those it has; `key` is one
// of error_fact. An OK status carries none.
inline absl::Status WithFact(absl::Status status, absl::string_view key,
                             absl::string_view value) {
  status.SetPayload(absl::StrCat(kErrorFactUrl, key), absl::Cord(value));
  return status;
}

// Calls visit(key, value) with each fact of `status`; both are string views.
template <typename Visit>
void ForEachFact(const absl::Status& status, Visit visit) {
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& value) {
    if (absl::ConsumePrefix(&url, kErrorFactUrl)) {
      visit(url, absl::string_view(std::string(value)));
    }
  });
}

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_ERROR_REASON_H_
