// The one place where internal errors become gRPC's.
#ifndef ATTENTION_SERVER_RPC_STATUS_TRANSLATION_H_
#define ATTENTION_SERVER_RPC_STATUS_TRANSLATION_H_

#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "attention/v1/attention.pb.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/status.h"

namespace attention {

inline constexpr char kRetryPushbackTrailer[] = "grpc-retry-pushback-ms";
inline constexpr char kErrorDomain[] = "attention.v1";

// The reason that callers see: the status's own, or the usual one of its code.
std::string_view PublicReason(const absl::Status& status);

// Same code and message, with google.rpc.ErrorInfo in the details, and
// google.rpc.RetryInfo if there is a delay. Long messages are cut: they travel
// in headers, whose size gRPC limits. OK stays OK.
grpc::Status ToGrpcStatus(const absl::Status& status,
                          std::optional<absl::Duration> retry_delay);

// As above, and asks gRPC clients for the same delay in the trailer. Call before
// the call is finished.
grpc::Status ToGrpcStatus(const absl::Status& status,
                          std::optional<absl::Duration> retry_delay,
                          grpc::ServerContextBase& context);

// As above, for an error within an answer. Not for OK.
void SetStepError(const absl::Status& status,
                  std::optional<absl::Duration> retry_delay,
                  v1::StepError& error);

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_STATUS_TRANSLATION_H_
