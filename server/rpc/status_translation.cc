#include "server/rpc/status_translation.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "google/rpc/status.pb.h"
#include "server/engine/error_reason.h"
#include "server/rpc/duration_proto.h"

namespace attention {
namespace {

// The message is sent twice, escaped in grpc-message and within the details;
// clients accept 8 KiB of headers.
constexpr size_t kMaxMessageBytes = 1024;

std::string MessageOf(const absl::Status& status) {
  return std::string(status.message().substr(0, kMaxMessageBytes));
}

void SetFacts(const absl::Status& status,
              google::protobuf::Map<std::string, std::string>& metadata) {
  ForEachFact(status, [&](absl::string_view key, absl::string_view value) {
    metadata[std::string(key)] = std::string(value);
  });
}

}  // namespace

std::string_view PublicReason(const absl::Status& status) {
  if (const std::string_view reason = ReasonOf(status); !reason.empty()) {
    return reason;
  }
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument: return error_reason::kInvalidRequest;
    case absl::StatusCode::kUnimplemented: return error_reason::kUnsupported;
    case absl::StatusCode::kResourceExhausted: return error_reason::kOutOfMemory;
    case absl::StatusCode::kDeadlineExceeded:
      return error_reason::kDeadlineExceeded;
    case absl::StatusCode::kCancelled: return error_reason::kCancelled;
    case absl::StatusCode::kUnavailable: return error_reason::kDeviceFailed;
    default: return error_reason::kInternal;
  }
}

grpc::Status ToGrpcStatus(const absl::Status& status,
                          std::optional<absl::Duration> retry_delay) {
  if (status.ok()) return grpc::Status::OK;
  const std::string message = MessageOf(status);
  const std::string_view reason = PublicReason(status);

  google::rpc::Status proto;
  proto.set_code(static_cast<int>(status.code()));
  proto.set_message(message);
  google::rpc::ErrorInfo info;
  info.set_reason(std::string(reason));
  info.set_domain(kErrorDomain);
  SetFacts(status, *info.mutable_metadata());
  proto.add_details()->PackFrom(info);
  if (retry_delay.has_value()) {
    google::rpc::RetryInfo retry;
    *retry.mutable_retry_delay() = ToProto(*retry_delay);
    proto.add_details()->PackFrom(retry);
  }
  // absl and gRPC number their codes alike.
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message,
                      proto.SerializeAsString());
}

grpc::Status ToGrpcStatus(const absl::Status& status,
                          std::optional<absl::Duration> retry_delay,
                          grpc::ServerContextBase& context) {
  if (retry_delay.has_value()) {
    context.AddTrailingMetadata(
        kRetryPushbackTrailer,
        absl::StrCat(absl::ToInt64Milliseconds(*retry_delay)));
  }
  return ToGrpcStatus(status, retry_delay);
}

void SetStepError(const absl::Status& status,
                  std::optional<absl::Duration> retry_delay,
                  v1::StepError& error) {
  error.set_code(static_cast<int>(status.code()));
  error.set_message(MessageOf(status));
  error.set_reason(std::string(PublicReason(status)));
  SetFacts(status, *error.mutable_metadata());
  if (retry_delay.has_value()) {
    *error.mutable_retry_delay() = ToProto(*retry_delay);
  }
}

}  // namespace attention
