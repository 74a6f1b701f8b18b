// Between the client's types for sessions and the messages on the wire.
#ifndef ATTENTION_CLIENT_CPP_SESSION_MESSAGES_H_
#define ATTENTION_CLIENT_CPP_SESSION_MESSAGES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "attention/v1/attention.pb.h"
#include "client/cpp/request_memory.h"
#include "client/cpp/session.h"
#include "client/cpp/sessions.h"
#include "grpcpp/support/byte_buffer.h"

namespace attention {

// Bytes of one token of one layer.
struct TokenBytes {
  explicit TokenBytes(const SessionOptions& options);

  size_t query;
  size_t key;
  size_t value;
  size_t output;
  size_t log_sum_exp;
};

// Without wrapping: the server refuses what is too much.
int64_t SaturatedSum(int64_t a, int64_t b);

// T, the tokens of all items.
int64_t TokenCountOf(const DecodeRequest& request);

v1::SessionConfiguration ToProto(const SessionOptions& options);

// What the session was created with. Internal when this client does not know
// it.
absl::StatusOr<SessionOptions> OptionsOf(const v1::Session& session);

// Serialised requests. InvalidArgument when they are larger than a message can
// be. `position` is the expected one.
absl::StatusOr<grpc::ByteBuffer> SerializeAppend(const std::string& session,
                                                 const SessionOptions& options,
                                                 const LayerTokens& tokens,
                                                 int64_t position,
                                                 RequestMemory& memory);
// The same as a message of a stream.
absl::StatusOr<grpc::ByteBuffer> SerializeAppendChunk(
    const std::string& session, const SessionOptions& options,
    const LayerTokens& tokens, int64_t position, RequestMemory& memory);
absl::StatusOr<grpc::ByteBuffer> SerializeAttend(const std::string& session,
                                                 const SessionOptions& options,
                                                 const LayerQueries& queries,
                                                 RequestMemory& memory);
// `positions` has one per item. InvalidArgument also for a request without
// items or with one without a session.
absl::StatusOr<grpc::ByteBuffer> SerializeDecode(
    const DecodeRequest& request, absl::Span<const int64_t> positions,
    RequestMemory& memory);
absl::StatusOr<grpc::ByteBuffer> SerializeStreamDecode(
    const DecodeRequest& request, absl::Span<const int64_t> positions,
    int64_t tag, RequestMemory& memory);

// Moves the payloads. Internal when the answer contradicts itself or does not
// fit the request.
absl::StatusOr<AttentionResult> ResultOf(v1::AttendSessionResponse response,
                                         const SessionOptions& options,
                                         const LayerQueries& queries);
// What is needed of a request to understand its answer.
struct DecodeShape {
  // Empty if the request is one that cannot be serialised.
  explicit DecodeShape(const DecodeRequest& request);

  size_t item_count = 0;
  size_t output_bytes = 0;
  size_t log_sum_exp_bytes = 0;  // also unless asked for
};
// Response is DecodeResponse or StreamDecodeResponse.
template <typename Response>
absl::StatusOr<DecodeResult> ResultOf(Response response,
                                      const DecodeShape& shape);

// With an ErrorInfo, and a RetryInfo if there is a delay, as failed calls have.
absl::Status StatusOf(const v1::StepError& error);

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_SESSION_MESSAGES_H_
