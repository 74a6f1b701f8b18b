// What attempts of unary calls and of streams have in common.
#ifndef ATTENTION_CLIENT_CPP_ATTEMPT_H_
#define ATTENTION_CLIENT_CPP_ATTEMPT_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/cpp/retry.h"
#include "grpcpp/client_context.h"

namespace attention {

// What the server asked for in its trailers. Only after the call.
std::optional<Pushback> FindPushback(const grpc::ClientContext& context);

// `remaining` may be infinite.
void SetDeadline(absl::Duration remaining, grpc::ClientContext& context);

// Says whose call it is, unless `tenant` is empty.
void SetTenant(const std::string& tenant, grpc::ClientContext& context);

// As what a stream that ended so is retried.
absl::StatusCode CodeForRetry(const absl::Status& status);

// In [0, 1).
double RandomFraction();

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_ATTEMPT_H_
