// Requests on their way to the wire, without protobuf's copies of the tensors.
#ifndef ATTENTION_CLIENT_CPP_REQUEST_SERIALIZER_H_
#define ATTENTION_CLIENT_CPP_REQUEST_SERIALIZER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/cpp/attention_client.h"
#include "client/cpp/region_table.h"
#include "client/cpp/request_memory.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/support/byte_buffer.h"

namespace attention {

// Tag and length of a `bytes` field.
std::string FieldPrefix(int field_number, size_t size);

// A tensor that a message carries.
struct Payload {
  int field_number = 0;
  absl::string_view name;
  const void* data = nullptr;
  size_t size_bytes = 0;  // 0: the message is without it
};

// `metadata` and its payloads, serialised with one copy of them, in `memory`;
// with a tag, a StreamComputeAttentionRequest of them. InvalidArgument when
// they are larger than a message can be.
absl::StatusOr<grpc::ByteBuffer> SerializeWithPayloads(
    const google::protobuf::MessageLite& metadata,
    absl::Span<const Payload> payloads, RequestMemory& memory,
    std::optional<int64_t> stream_tag = std::nullopt);

// ToProto(request), serialised, with one copy of the tensors, in `memory`,
// instead of two, and references to those that lie in regions; with a tag as a
// message of StreamComputeAttention. InvalidArgument when it is larger than a
// message can be, or a ResultBuffer does not lie in a region.
absl::StatusOr<grpc::ByteBuffer> SerializeRequest(
    const AttentionRequest& request, const RegionTable& regions,
    RequestMemory& memory, std::optional<int64_t> stream_tag = std::nullopt);

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_REQUEST_SERIALIZER_H_
