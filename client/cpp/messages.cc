#include "client/cpp/messages.h"

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "grpcpp/support/slice.h"

namespace attention {
namespace {

v1::Layout ToProto(Layout layout) {
  switch (layout) {
    case Layout::kBshd:
      return v1::LAYOUT_BSHD;
    case Layout::kBhsd:
      return v1::LAYOUT_BHSD;
    case Layout::kThd:
      return v1::LAYOUT_THD;
  }
  return v1::LAYOUT_UNSPECIFIED;
}

v1::Algorithm ToProto(Algorithm algorithm) {
  return algorithm == Algorithm::kThreeStep ? v1::ALGORITHM_THREE_STEP
                                            : v1::ALGORITHM_STREAMING;
}

void SetDescriptor(const TensorView& tensor, v1::TensorDescriptor* descriptor) {
  descriptor->mutable_shape()->Assign(tensor.shape.begin(), tensor.shape.end());
  descriptor->mutable_strides()->Assign(tensor.strides.begin(),
                                        tensor.strides.end());
}

absl::Status CheckPayload(absl::string_view name,
                          const v1::TensorDescriptor& descriptor,
                          int64_t element_bytes, const std::string& payload,
                          std::optional<size_t> region_bytes) {
  if (region_bytes.has_value() && !payload.empty()) {
    return absl::InternalError(absl::StrCat(
        "the server's answer carries ", name, ", which belongs to a region"));
  }
  const size_t size = region_bytes.value_or(payload.size());
  int64_t bytes = element_bytes;
  for (const int64_t extent : descriptor.shape()) {
    if (extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes)) bytes = -1;
    if (bytes <= 0) break;
  }
  if (bytes == static_cast<int64_t>(size)) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("the server's answer contradicts itself: ", name, " has ",
                   size, " bytes, its shape ", bytes));
}

std::vector<int64_t> ShapeOf(const v1::TensorDescriptor& descriptor) {
  return {descriptor.shape().begin(), descriptor.shape().end()};
}

// Beyond every bound if it does not fit.
size_t Product(std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  for (const int64_t factor : factors) {
    if (factor < 0 || __builtin_mul_overflow(product, factor, &product)) {
      return std::numeric_limits<int64_t>::max() / 4;  // sums fit too
    }
  }
  return static_cast<size_t>(product);
}

}  // namespace

v1::DataType ToProto(DataType data_type) {
  switch (data_type) {
    case DataType::kFloat32:
      return v1::DATA_TYPE_FLOAT32;
    case DataType::kFloat16:
      return v1::DATA_TYPE_FLOAT16;
    case DataType::kBFloat16:
      return v1::DATA_TYPE_BFLOAT16;
    case DataType::kFloat8E4M3:
      return v1::DATA_TYPE_FLOAT8_E4M3;
  }
  return v1::DATA_TYPE_UNSPECIFIED;
}

v1::MaskType ToProto(MaskKind mask) {
  switch (mask) {
    case MaskKind::kNone:
      return v1::MASK_TYPE_NONE;
    case MaskKind::kCausalTopLeft:
      return v1::MASK_TYPE_CAUSAL_TOP_LEFT;
    case MaskKind::kCausalBottomRight:
      return v1::MASK_TYPE_CAUSAL_BOTTOM_RIGHT;
  }
  return v1::MASK_TYPE_UNSPECIFIED;
}

v1::Precision ToProto(Precision precision) {
  return precision == Precision::kTf32 ? v1::PRECISION_TF32
                                       : v1::PRECISION_IEEE;
}

google::protobuf::Duration ToProto(absl::Duration duration) {
  google::protobuf::Duration proto;
  proto.set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &duration));
  proto.set_nanos(static_cast<int32_t>(duration / absl::Nanoseconds(1)));
  return proto;
}

absl::StatusOr<DataType> FromProto(v1::DataType data_type) {
  switch (data_type) {
    case v1::DATA_TYPE_FLOAT32:
      return DataType::kFloat32;
    case v1::DATA_TYPE_FLOAT16:
      return DataType::kFloat16;
    case v1::DATA_TYPE_BFLOAT16:
      return DataType::kBFloat16;
    default:
      return absl::InternalError(
          absl::StrCat("the server's answer has the unknown data type ",
                       static_cast<int>(data_type)));
  }
}

absl::Duration FromProto(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) +
         absl::Nanoseconds(duration.nanos());
}

v1::ComputeAttentionRequest MetadataToProto(const AttentionRequest& request) {
  v1::ComputeAttentionRequest proto;
  proto.set_data_type(ToProto(request.data_type));
  proto.set_layout(ToProto(request.layout));
  SetDescriptor(request.query, proto.mutable_query_descriptor());
  SetDescriptor(request.key, proto.mutable_key_descriptor());
  SetDescriptor(request.value, proto.mutable_value_descriptor());
  proto.mutable_query_lengths()->Assign(request.query_lengths.begin(),
                                        request.query_lengths.end());
  proto.mutable_key_lengths()->Assign(request.key_lengths.begin(),
                                      request.key_lengths.end());
  if (request.scale.has_value()) proto.set_scale(*request.scale);
  proto.mutable_query_scales()->Assign(request.query_scales.begin(),
                                       request.query_scales.end());
  proto.mutable_key_scales()->Assign(request.key_scales.begin(),
                                     request.key_scales.end());
  proto.mutable_value_scales()->Assign(request.value_scales.begin(),
                                       request.value_scales.end());
  proto.set_mask_type(ToProto(request.mask));
  if (request.window_left.has_value()) {
    proto.mutable_sliding_window()->set_left(*request.window_left);
  }
  if (request.window_right.has_value()) {
    proto.mutable_sliding_window()->set_right(*request.window_right);
  }
  proto.set_precision(ToProto(request.precision));
  if (request.algorithm.has_value()) {
    proto.set_algorithm(ToProto(*request.algorithm));
  }
  proto.set_return_log_sum_exp(request.return_log_sum_exp);
  proto.set_return_weights(request.return_weights);
  return proto;
}

size_t InlineBytes(const AttentionRequest& request,
                   const RegionTable& regions) {
  size_t bytes = 0;
  for (const TensorView* tensor :
       {&request.query, &request.key, &request.value}) {
    if (!regions.Find(tensor->data, tensor->size_bytes).has_value()) {
      bytes += tensor->size_bytes;
    }
  }
  return bytes;
}

size_t AnswerBytes(const AttentionRequest& request) {
  const std::vector<int64_t>& query = request.query.shape;
  const std::vector<int64_t>& key = request.key.shape;
  const size_t dimensions = request.layout == Layout::kThd ? 3 : 4;
  if (query.size() != dimensions || key.size() != dimensions ||
      request.value.shape.size() != dimensions) {
    return 0;  // the server will say what is wrong
  }
  const bool packed = request.layout == Layout::kThd;
  const bool heads_first = request.layout == Layout::kBhsd;
  const int64_t batch = packed ? 1 : query[0];
  const int64_t heads = query[packed ? 1 : heads_first ? 1 : 2];
  const int64_t queries = query[packed ? 0 : heads_first ? 2 : 1];
  const int64_t keys = key[packed ? 0 : heads_first ? 2 : 1];
  const int64_t element_bytes = ElementBytes(OutputType(request.data_type));
  size_t bytes = 0;
  if (request.output_buffer.data == nullptr) {
    bytes += Product({batch, queries, heads, request.value.shape.back(),
                      element_bytes});
  }
  if (request.return_log_sum_exp &&
      request.log_sum_exp_buffer.data == nullptr) {
    bytes += Product({batch, queries, heads, int64_t{sizeof(float)}});
  }
  if (request.return_weights && request.weights_buffer.data == nullptr) {
    // Of a packed batch less: its sequences do not see each other.
    bytes += Product({batch, heads, queries, keys, element_bytes});
  }
  return bytes;
}

v1::ComputeAttentionRequest ToProto(const AttentionRequest& request) {
  v1::ComputeAttentionRequest proto = MetadataToProto(request);
  proto.set_query(request.query.data, request.query.size_bytes);
  proto.set_key(request.key.data, request.key.size_bytes);
  proto.set_value(request.value.data, request.value.size_bytes);
  return proto;
}

RegionResults::RegionResults(const AttentionRequest& request) {
  const std::pair<const ResultBuffer*, std::optional<size_t>*> sizes[] = {
      {&request.output_buffer, &output},
      {&request.log_sum_exp_buffer, &log_sum_exp},
      {&request.weights_buffer, &weights}};
  for (const auto& [buffer, size] : sizes) {
    if (buffer->data != nullptr) *size = buffer->size_bytes;
  }
}

absl::StatusOr<AttentionResult> FromProto(v1::ComputeAttentionResponse response,
                                          const RegionResults& results) {
  AttentionResult result;
  const absl::StatusOr<DataType> data_type = FromProto(response.data_type());
  if (!data_type.ok()) return data_type.status();
  result.data_type = *data_type;
  const int64_t element_bytes = ElementBytes(result.data_type);
  absl::Status status = CheckPayload("output", response.output_descriptor(),
                                     element_bytes, response.output(),
                                     results.output);
  if (status.ok() && response.has_log_sum_exp_descriptor()) {
    status = CheckPayload("log_sum_exp", response.log_sum_exp_descriptor(),
                          sizeof(float), response.log_sum_exp(),
                          results.log_sum_exp);
  }
  if (status.ok() && response.has_weights_descriptor()) {
    status = CheckPayload("weights", response.weights_descriptor(),
                          element_bytes, response.weights(), results.weights);
  }
  if (!status.ok()) return status;
  result.output_shape = ShapeOf(response.output_descriptor());
  result.output = std::move(*response.mutable_output());
  result.log_sum_exp_shape = ShapeOf(response.log_sum_exp_descriptor());
  result.log_sum_exp = std::move(*response.mutable_log_sum_exp());
  result.weights_shape = ShapeOf(response.weights_descriptor());
  result.weights = std::move(*response.mutable_weights());
  result.timings = std::move(*response.mutable_timings());
  return result;
}

grpc::ByteBuffer Serialize(const google::protobuf::MessageLite& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

absl::Status Parse(grpc::ByteBuffer bytes,
                   google::protobuf::MessageLite* message) {
  grpc::ProtoBufferReader reader(&bytes);
  if (reader.status().ok() && message->ParseFromZeroCopyStream(&reader)) {
    return absl::OkStatus();
  }
  return absl::InternalError(
      absl::StrCat("the server's answer is not a ", message->GetTypeName()));
}

}  // namespace attention
