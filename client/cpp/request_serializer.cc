#include "client/cpp/request_serializer.h"

#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cpp/messages.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/support/slice.h"

namespace attention {
namespace {

using google::protobuf::internal::WireFormatLite;

constexpr size_t kMaxMessageBytes = std::numeric_limits<int32_t>::max();

using MutableReference =
    v1::RegionReference* (v1::ComputeAttentionRequest::*)();

absl::Status ReferToResults(const AttentionRequest& request,
                            const RegionTable& regions,
                            v1::ComputeAttentionRequest& proto) {
  using Proto = v1::ComputeAttentionRequest;
  const std::tuple<const char*, const ResultBuffer*, MutableReference>
      results[] = {{"output_buffer", &request.output_buffer,
                    &Proto::mutable_output_reference},
                   {"log_sum_exp_buffer", &request.log_sum_exp_buffer,
                    &Proto::mutable_log_sum_exp_reference},
                   {"weights_buffer", &request.weights_buffer,
                    &Proto::mutable_weights_reference}};
  for (const auto& [name, buffer, reference] : results) {
    if (buffer->data == nullptr) continue;
    auto found = regions.Find(buffer->data, buffer->size_bytes);
    if (!found.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " must lie in a region of the client; its ",
                       buffer->size_bytes, " bytes do not"));
    }
    *(proto.*reference)() = *std::move(found);
    proto.set_region_owner_token(regions.owner_token());
  }
  return absl::OkStatus();
}

// What a StreamComputeAttentionRequest begins with, at most.
constexpr size_t kMaxStreamPrefixBytes = 32;

// The tag, and the beginning of a request of so many bytes.
std::string StreamPrefix(int64_t tag, size_t request_bytes) {
  v1::StreamComputeAttentionRequest message;
  message.set_tag(tag);
  std::string prefix = message.SerializeAsString();
  prefix += FieldPrefix(message.kRequestFieldNumber, request_bytes);
  return prefix;
}

}  // namespace

std::string FieldPrefix(int field_number, size_t size) {
  std::string prefix;
  google::protobuf::io::StringOutputStream stream(&prefix);
  google::protobuf::io::CodedOutputStream out(&stream);
  out.WriteTag(WireFormatLite::MakeTag(
      field_number, WireFormatLite::WIRETYPE_LENGTH_DELIMITED));
  out.WriteVarint64(size);
  out.Trim();
  return prefix;
}

absl::StatusOr<grpc::ByteBuffer> SerializeWithPayloads(
    const google::protobuf::MessageLite& metadata,
    absl::Span<const Payload> payloads, RequestMemory& memory,
    std::optional<int64_t> stream_tag) {
  const size_t prefix_bytes =
      stream_tag.has_value() ? kMaxStreamPrefixBytes : 0;
  size_t total = prefix_bytes + metadata.ByteSizeLong();
  for (const Payload& payload : payloads) {
    if (payload.size_bytes == 0) continue;
    // In two steps, so that no sum can wrap.
    if (total <= kMaxMessageBytes && payload.size_bytes <= kMaxMessageBytes) {
      total += FieldPrefix(payload.field_number, payload.size_bytes).size();
      total += payload.size_bytes;
    } else {
      total = kMaxMessageBytes + 1;
    }
  }
  if (total > kMaxMessageBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a request must be at most ", kMaxMessageBytes,
        " bytes; got tensors of ",
        absl::StrJoin(payloads, ", ",
                      [](std::string* text, const Payload& payload) {
                        absl::StrAppend(text, payload.size_bytes, " (",
                                        payload.name, ")");
                      }),
        " bytes"));
  }
  std::string header;
  if (stream_tag.has_value()) {
    header = StreamPrefix(*stream_tag, total - prefix_bytes);
  }
  metadata.AppendToString(&header);
  std::vector<grpc::Slice> slices = {grpc::Slice(header)};
  for (const Payload& payload : payloads) {
    if (payload.size_bytes == 0) continue;
    slices.emplace_back(FieldPrefix(payload.field_number, payload.size_bytes));
    slices.push_back(memory.Copy(payload.data, payload.size_bytes));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

absl::StatusOr<grpc::ByteBuffer> SerializeRequest(
    const AttentionRequest& request, const RegionTable& regions,
    RequestMemory& memory, std::optional<int64_t> stream_tag) {
  using Proto = v1::ComputeAttentionRequest;
  Proto proto = MetadataToProto(request);
  if (absl::Status status = ReferToResults(request, regions, proto);
      !status.ok()) {
    return status;
  }
  std::vector<Payload> payloads;  // sent inline
  const std::tuple<int, const char*, const TensorView*, MutableReference>
      tensors[] = {{Proto::kQueryFieldNumber, "query", &request.query,
                    &Proto::mutable_query_reference},
                   {Proto::kKeyFieldNumber, "key", &request.key,
                    &Proto::mutable_key_reference},
                   {Proto::kValueFieldNumber, "value", &request.value,
                    &Proto::mutable_value_reference}};
  for (const auto& [number, name, tensor, reference] : tensors) {
    if (tensor->size_bytes == 0) continue;
    auto found = regions.Find(tensor->data, tensor->size_bytes);
    if (found.has_value()) {
      *(proto.*reference)() = *std::move(found);
      proto.set_region_owner_token(regions.owner_token());
    } else {
      payloads.push_back({number, name, tensor->data, tensor->size_bytes});
    }
  }
  return SerializeWithPayloads(proto, payloads, memory, stream_tag);
}

}  // namespace attention
