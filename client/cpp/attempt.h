// What attempts of unary calls and of streams have in common.
#ifndef ATTENTION_CLIENT_CPP_ATTEMPT_H_
#define ATTENTION_CLIENT_CPP_ATTEMPT_H_

#include <optional>

#include "absl/time/time.h"
#include "client/cpp/retry.h"
#include "grpcpp/client_context.h"

namespace attention {

// What the server asked for in its trailers. Only after the call.
std::optional<Pushback> FindPushback(const grpc::ClientContext& context);

// `remaining` may be infinite.
void SetDeadline(absl::Duration remaining, grpc::ClientContext& context);

// In [0, 1).
double RandomFraction();

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_ATTEMPT_H_
