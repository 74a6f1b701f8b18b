#include "server/rpc/response_parts.h"

#include <algorithm>
#include <cstring>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpc/slice.h"
#include "server/rpc/duration_proto.h"

namespace attention {
namespace {

using ::google::protobuf::internal::WireFormatLite;

void SetShape(const Shape& shape, v1::TensorDescriptor* target) {
  target->mutable_shape()->Add(shape.begin(), shape.end());
}

// Spreads the [heads, m, n] weights at the start of a [heads, M, N] part over
// that part and clears the gaps. In place: rows only move towards the end, so
// the last one goes first and never lands on one that has yet to move.
void SpreadRows(char* part, int64_t heads, std::pair<int64_t, int64_t> dense,
                std::pair<int64_t, int64_t> padded, int64_t element_bytes) {
  const int64_t row_bytes = dense.second * element_bytes;
  const int64_t padded_row_bytes = padded.second * element_bytes;
  for (int64_t h = heads - 1; h >= 0; --h) {
    for (int64_t i = dense.first - 1; i >= 0; --i) {
      std::memmove(part + (h * padded.first + i) * padded_row_bytes,
                   part + (h * dense.first + i) * row_bytes, row_bytes);
    }
  }
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < padded.first; ++i) {
      char* const row = part + (h * padded.first + i) * padded_row_bytes;
      const int64_t kept_bytes = i < dense.first ? row_bytes : 0;
      std::memset(row + kept_bytes, 0, padded_row_bytes - kept_bytes);
    }
  }
}

}  // namespace

void SetMetadata(const ResponsePlan& plan, const WorkResult& result,
                 v1::ComputeAttentionResponse& response) {
  response.set_data_type(plan.data_type);
  SetShape(plan.output_shape, response.mutable_output_descriptor());
  if (plan.has_log_sum_exp) {
    SetShape(plan.log_sum_exp_shape, response.mutable_log_sum_exp_descriptor());
  }
  if (plan.has_weights) {
    SetShape(plan.weights_shape, response.mutable_weights_descriptor());
  }
  SetTimings(result, *response.mutable_timings());
}

void SetTimings(const WorkResult& result,
                v1::ComputeAttentionTimings& timings) {
  *timings.mutable_queue_duration() = ToProto(result.queue_duration);
  *timings.mutable_copy_in_duration() = ToProto(result.copy_in_duration);
  *timings.mutable_compute_duration() = ToProto(result.compute_duration);
  *timings.mutable_copy_out_duration() = ToProto(result.copy_out_duration);
  timings.set_batch_request_count(result.batch_request_count);
  timings.set_batch_sequence_count(result.batch_sequence_count);
  timings.set_device_name(result.device_name);
}

void SpreadWeights(const ResponsePlan& plan, const Block& weights) {
  if (plan.padded_lengths.empty() || weights.size() == 0) return;
  const int64_t element_bytes = plan.data_type == v1::DATA_TYPE_FLOAT32 ? 4 : 2;
  const int64_t heads = plan.weights_shape[1];
  const int64_t m = plan.weights_shape[2];
  const int64_t n = plan.weights_shape[3];
  char* part = static_cast<char*>(weights.data());
  for (const auto& lengths : plan.padded_lengths) {
    SpreadRows(part, heads, lengths, {m, n}, element_bytes);
    part += heads * m * n * element_bytes;
  }
}

PayloadHeader::PayloadHeader(int field, size_t size) {
  uint8_t* end = WireFormatLite::WriteTagToArray(
      field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED, bytes_);
  end = google::protobuf::io::CodedOutputStream::WriteVarint32ToArray(
      static_cast<uint32_t>(size), end);
  size_ = static_cast<size_t>(end - bytes_);
}

grpc::Slice Serialize(const google::protobuf::MessageLite& message,
                      absl::string_view prefix) {
  grpc_slice slice = grpc_slice_malloc(prefix.size() + message.ByteSizeLong());
  uint8_t* const begin = GRPC_SLICE_START_PTR(slice);
  std::copy(prefix.begin(), prefix.end(), begin);
  message.SerializeWithCachedSizesToArray(begin + prefix.size());
  return {slice, grpc::Slice::STEAL_REF};
}

grpc::Slice SliceOf(const std::shared_ptr<const SharedBlock>& shared,
                    size_t offset, size_t size) {
  using Reference = std::shared_ptr<const SharedBlock>;
  return grpc::Slice(
      static_cast<char*>(shared->block.data()) + offset, size,
      [](void* p) { delete static_cast<Reference*>(p); },
      new Reference(shared));
}

}  // namespace attention
