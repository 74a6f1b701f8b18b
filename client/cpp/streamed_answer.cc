#include "client/cpp/streamed_answer.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/support/proto_buffer_reader.h"

namespace attention {
namespace {

using ::google::protobuf::internal::WireFormatLite;
using ::google::protobuf::io::CodedInputStream;
using Response = v1::StreamAttentionResponse;

absl::Status Contradiction(absl::string_view how) {
  return absl::InternalError(
      absl::StrCat("the server's answer contradicts itself: ", how));
}

// Bytes of the tensor that the descriptor describes; 0 if there can be none.
size_t DescribedBytes(const v1::TensorDescriptor& descriptor,
                      int64_t element_bytes) {
  int64_t bytes = element_bytes;
  for (const int64_t extent : descriptor.shape()) {
    if (extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes)) return 0;
  }
  return static_cast<size_t>(bytes);
}

// The next message, of so many bytes, on its own.
template <typename Message>
bool ReadMessage(CodedInputStream& input, int size, Message* message) {
  const auto limit = input.PushLimit(size);
  const bool read = message->MergeFromCodedStream(&input) &&
                    input.ConsumedEntireMessage();
  input.PopLimit(limit);
  return read;
}

}  // namespace

// Where the bytes of a tensor go.
struct StreamedAnswer::Target {
  const ResultBuffer& buffer;
  size_t& buffer_bytes;
  std::string& bytes;
  size_t size;  // of the whole tensor
};

absl::StatusOr<StreamedAnswer::Target> StreamedAnswer::TargetOf(int tensor) {
  const int64_t element_bytes =
      response_.data_type() == v1::DATA_TYPE_FLOAT32 ? 4 : 2;
  switch (tensor) {
    case v1::TENSOR_OUTPUT:
      return Target{buffers_.output, output_bytes_, *response_.mutable_output(),
                    DescribedBytes(response_.output_descriptor(),
                                   element_bytes)};
    case v1::TENSOR_LOG_SUM_EXP:
      return Target{buffers_.log_sum_exp, log_sum_exp_bytes_,
                    *response_.mutable_log_sum_exp(),
                    DescribedBytes(response_.log_sum_exp_descriptor(),
                                   sizeof(float))};
    case v1::TENSOR_WEIGHTS:
      return Target{buffers_.weights, weights_bytes_,
                    *response_.mutable_weights(),
                    DescribedBytes(response_.weights_descriptor(),
                                   element_bytes)};
    default:
      return Contradiction("a chunk belongs to no result");
  }
}

absl::StatusOr<std::optional<v1::UploadState>> StreamedAnswer::Take(
    grpc::ByteBuffer message) {
  grpc::ProtoBufferReader reader(&message);
  if (!reader.status().ok()) return Contradiction("a message is not readable");
  CodedInputStream input(&reader);
  std::optional<v1::UploadState> state;
  int tensor = v1::TENSOR_UNSPECIFIED;
  int64_t byte_offset = 0;
  // By hand, since the generated code would copy the data into a string. Fields
  // are in the order of their numbers, as serialisers write them.
  while (const uint32_t tag = input.ReadTag()) {
    bool read = true;
    const int field = WireFormatLite::GetTagFieldNumber(tag);
    uint64_t number = 0;
    int size = 0;
    if (field == Response::kTensorFieldNumber) {
      read = input.ReadVarint64(&number);
      tensor = static_cast<int>(number);
    } else if (field == Response::kByteOffsetFieldNumber) {
      read = input.ReadVarint64(&number);
      byte_offset = static_cast<int64_t>(number);
    } else if (field == Response::kUploadStateFieldNumber) {
      read = input.ReadVarintSizeAsInt(&size) &&
             ReadMessage(input, size, &state.emplace());
    } else if (field == Response::kResultFieldNumber) {
      has_result_ = true;
      read = input.ReadVarintSizeAsInt(&size) &&
             ReadMessage(input, size, &response_);
    } else if (field == Response::kDataFieldNumber) {
      read = input.ReadVarintSizeAsInt(&size);
      if (read && size > 0) {
        absl::Status status = TakeData(tensor, byte_offset, input, size);
        if (!status.ok()) return status;
      }
    } else {
      read = WireFormatLite::SkipField(&input, tag);
    }
    if (!read) return Contradiction("a message is malformed");
  }
  if (!input.ConsumedEntireMessage()) {
    return Contradiction("a message is malformed");
  }
  return state;
}

absl::Status StreamedAnswer::TakeData(int tensor, int64_t byte_offset,
                                      CodedInputStream& input, int size) {
  if (!has_result_) return Contradiction("a chunk comes before the result");
  const absl::StatusOr<Target> found = TargetOf(tensor);
  if (!found.ok()) return found.status();
  const Target& target = *found;
  const bool to_buffer = target.buffer.data != nullptr;
  const size_t have = to_buffer ? target.buffer_bytes : target.bytes.size();
  const size_t room =
      to_buffer ? std::min(target.size, target.buffer.size_bytes) : target.size;
  if (byte_offset != static_cast<int64_t>(have) ||
      static_cast<size_t>(size) > room - std::min(have, room)) {
    return Contradiction("a chunk does not follow the one before, or exceeds "
                         "its tensor or the caller's buffer");
  }
  if (to_buffer) {
    target.buffer_bytes += static_cast<size_t>(size);
    return input.ReadRaw(static_cast<char*>(target.buffer.data) + have, size)
               ? absl::OkStatus()
               : Contradiction("a message is malformed");
  }
  if (have == 0) target.bytes.reserve(target.size);
  while (size > 0) {
    const void* data = nullptr;
    int available = 0;
    if (!input.GetDirectBufferPointer(&data, &available)) {
      return Contradiction("a message is malformed");
    }
    const int taken = std::min(available, size);
    target.bytes.append(static_cast<const char*>(data), taken);
    input.Skip(taken);
    size -= taken;
  }
  return absl::OkStatus();
}

absl::StatusOr<AttentionResult> StreamedAnswer::Finish() && {
  if (!has_result_) return Contradiction("it has no result");
  const std::pair<const std::optional<size_t>*, size_t> buffers[] = {
      {&sizes_.output, output_bytes_},
      {&sizes_.log_sum_exp, log_sum_exp_bytes_},
      {&sizes_.weights, weights_bytes_}};
  for (const auto& [size, bytes] : buffers) {
    if (size->has_value() && **size != bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("a buffer for a result must have its size; got ", **size,
                       " bytes, of which ", bytes, " were written"));
    }
  }
  return FromProto(std::move(response_), sizes_);
}

}  // namespace attention
