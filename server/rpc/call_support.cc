#include "server/rpc/call_support.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/engine/error_reason.h"
#include "server/rpc/status_translation.h"

namespace attention {
namespace {

constexpr char kTenantKey[] = "attention-tenant";
constexpr size_t kMaxTenantBytes = 128;
// Sessions end when their callers say so, or after minutes.
constexpr absl::Duration kCacheRetryDelay = absl::Seconds(1);

}  // namespace

WireMessage::WireMessage(const grpc::ByteBuffer& message) {
  if (!message.Dump(&slices).ok()) slices.clear();
  for (const grpc::Slice& slice : slices) {
    fragments.emplace_back(reinterpret_cast<const char*>(slice.begin()),
                           slice.size());
  }
}

absl::Time DeadlineOf(const grpc::ServerContextBase& context) {
  const auto deadline = context.deadline();
  return deadline == std::chrono::system_clock::time_point::max()
             ? absl::InfiniteFuture()
             : absl::FromChrono(deadline);
}

absl::StatusOr<std::string> TenantOf(const grpc::ServerContextBase& context) {
  const auto [it, end] = context.client_metadata().equal_range(kTenantKey);
  if (it == end) return std::string();
  if (const auto count = std::distance(it, end); count > 1) {
    return InvalidRequest(absl::StrCat("the metadata ", kTenantKey,
                                       " must have one value; got ", count));
  }
  if (it->second.size() > kMaxTenantBytes) {
    return InvalidRequest(absl::StrCat("the metadata ", kTenantKey,
                                       " must have at most ", kMaxTenantBytes,
                                       " bytes; got ", it->second.size()));
  }
  return std::string(it->second.data(), it->second.size());
}

absl::Status CallerLeft(const grpc::ServerContextBase& context) {
  return absl::Now() >= DeadlineOf(context)
             ? WithReason(absl::DeadlineExceededError(
                              "the deadline passed during the computation"),
                          error_reason::kDeadlineExceeded)
             : WithReason(absl::CancelledError("the caller cancelled"),
                          error_reason::kCancelled);
}

std::optional<absl::Duration> RetryDelayOf(const absl::Status& status,
                                           const CallEnvironment& environment) {
  const std::string_view reason = PublicReason(status);
  if (reason == error_reason::kQueueFull) {
    return environment.scheduler->RetryDelay();
  }
  if (reason == error_reason::kCacheFull) return kCacheRetryDelay;
  return std::nullopt;
}

void LogRefusal(const absl::Status& status, CallEnvironment& environment) {
  const std::string_view reason = PublicReason(status);
  if (reason != error_reason::kCancelled &&
      reason != error_reason::kDeadlineExceeded) {
    environment.refusals.Warn("request refused", {reason.data(), reason.size()},
                              status);
  }
}

grpc::Status RefusalOf(const absl::Status& status, CallEnvironment& environment,
                       grpc::ServerContextBase& context) {
  LogRefusal(status, environment);
  return ToGrpcStatus(status, RetryDelayOf(status, environment), context);
}

}  // namespace attention
