// What calls of sessions have in common.
#ifndef ATTENTION_CLIENT_CPP_SESSION_CALLER_H_
#define ATTENTION_CLIENT_CPP_SESSION_CALLER_H_

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/cpp/attention_client.h"
#include "client/cpp/call_runner.h"
#include "client/cpp/messages.h"
#include "client/cpp/request_memory.h"
#include "grpcpp/support/byte_buffer.h"

namespace attention {

// Belongs to a client, which outlives all copies.
struct SessionCaller {
  CallRunner* runner = nullptr;
  RequestMemory* memory = nullptr;
  absl::Duration timeout;  // unless the call's options say otherwise

  absl::Duration Timeout(const Client::CallOptions& call) const {
    return call.timeout.value_or(timeout);
  }

  // The method's name as gRPC has it.
  static std::string Method(absl::string_view name) {
    return "/attention.v1.AttentionService/" + std::string(name);
  }

  // Waits for the answer to a request that is serialised, perhaps in vain.
  template <typename Response>
  absl::StatusOr<Response> Call(absl::string_view method,
                                absl::StatusOr<grpc::ByteBuffer> request,
                                const Client::CallOptions& call) const {
    if (!request.ok()) return request.status();
    auto answer =
        runner->Run({Method(method), *std::move(request), Timeout(call)});
    return ParseAs<Response>(std::move(answer));
  }

  template <typename Response>
  static absl::StatusOr<Response> ParseAs(
      absl::StatusOr<grpc::ByteBuffer> answer) {
    if (!answer.ok()) return answer.status();
    Response response;
    absl::Status status = Parse(*std::move(answer), &response);
    if (!status.ok()) return status;
    return response;
  }
};

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_SESSION_CALLER_H_
