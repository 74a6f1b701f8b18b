// Between the client's types and the messages on the wire.
#ifndef ATTENTION_CLIENT_CPP_MESSAGES_H_
#define ATTENTION_CLIENT_CPP_MESSAGES_H_

#include <cstddef>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "attention/v1/attention.pb.h"
#include "client/cpp/attention_client.h"
#include "client/cpp/region_table.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/support/byte_buffer.h"

namespace attention {

v1::DataType ToProto(DataType data_type);
v1::MaskType ToProto(MaskKind mask);
v1::Precision ToProto(Precision precision);
google::protobuf::Duration ToProto(absl::Duration duration);

// Internal for a data type that answers and sessions do not have.
absl::StatusOr<DataType> FromProto(v1::DataType data_type);
absl::Duration FromProto(const google::protobuf::Duration& duration);

// ToProto(request) without the tensors.
v1::ComputeAttentionRequest MetadataToProto(const AttentionRequest& request);

// Bytes of tensors that a message would carry: those that lie in no region.
size_t InlineBytes(const AttentionRequest& request, const RegionTable& regions);

// Bytes of the tensors that the answer would carry, at most; as much as can be
// told from a request that may be wrong.
size_t AnswerBytes(const AttentionRequest& request);

// Sizes of the results that the server writes to regions; unset for those that
// come in the answer.
struct RegionResults {
  RegionResults() = default;
  explicit RegionResults(const AttentionRequest& request);

  std::optional<size_t> output;
  std::optional<size_t> log_sum_exp;
  std::optional<size_t> weights;
};

// Moves the payloads. Internal when the answer contradicts itself.
absl::StatusOr<AttentionResult> FromProto(v1::ComputeAttentionResponse response,
                                          const RegionResults& results = {});

// A small message.
grpc::ByteBuffer Serialize(const google::protobuf::MessageLite& message);

// Internal when the bytes are not of this type of message.
absl::Status Parse(grpc::ByteBuffer bytes,
                   google::protobuf::MessageLite* message);

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_MESSAGES_H_
