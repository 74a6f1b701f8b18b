#include "server/rpc/response_encoder.h"

#include <cstring>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpc/slice.h"
#include "grpcpp/support/slice.h"
#include "server/rpc/duration_proto.h"
#include "server/rpc/message_arena.h"

namespace attention {
namespace {

using ::google::protobuf::internal::WireFormatLite;
using Response = v1::ComputeAttentionResponse;

void SetShape(const Shape& shape, v1::TensorDescriptor* target) {
  target->mutable_shape()->Add(shape.begin(), shape.end());
}

void SetMetadata(const ResponsePlan& plan, const WorkResult& result,
                 Response& response) {
  response.set_data_type(plan.data_type);
  SetShape(plan.output_shape, response.mutable_output_descriptor());
  if (plan.has_log_sum_exp) {
    SetShape(plan.log_sum_exp_shape, response.mutable_log_sum_exp_descriptor());
  }
  if (plan.has_weights) {
    SetShape(plan.weights_shape, response.mutable_weights_descriptor());
  }
  v1::ComputeAttentionTimings& timings = *response.mutable_timings();
  *timings.mutable_queue_duration() = ToProto(result.queue_duration);
  *timings.mutable_copy_in_duration() = ToProto(result.copy_in_duration);
  *timings.mutable_compute_duration() = ToProto(result.compute_duration);
  *timings.mutable_copy_out_duration() = ToProto(result.copy_out_duration);
  timings.set_batch_request_count(result.batch_request_count);
  timings.set_batch_sequence_count(result.batch_sequence_count);
  timings.set_device_name(result.device_name);
}

grpc::Slice SerializeMetadata(const ResponsePlan& plan,
                              const WorkResult& result) {
  MessageArena arena;
  Response& response = arena.Create<Response>();
  SetMetadata(plan, result, response);
  grpc_slice slice = grpc_slice_malloc(response.ByteSizeLong());
  response.SerializeWithCachedSizesToArray(GRPC_SLICE_START_PTR(slice));
  return {slice, grpc::Slice::STEAL_REF};
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

// Owns the memory of a slice until gRPC destroys it.
struct SliceOwner {
  Block block;
  std::shared_ptr<void> keep_alive;
};

// Metadata, and a header and the bytes of each tensor.
using Slices = absl::InlinedVector<grpc::Slice, 7>;

void AppendTensor(int field, Block block, const std::shared_ptr<void>& keep_alive,
                  Slices& slices) {
  if (block.size() == 0) return;
  uint8_t header[10];
  uint8_t* end = WireFormatLite::WriteTagToArray(
      field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED, header);
  end = google::protobuf::io::CodedOutputStream::WriteVarint32ToArray(
      static_cast<uint32_t>(block.size()), end);
  slices.emplace_back(header, end - header);
  void* const data = block.data();
  const size_t size = block.size();
  auto* owner = new SliceOwner{std::move(block), keep_alive};
  slices.emplace_back(
      data, size, [](void* p) { delete static_cast<SliceOwner*>(p); }, owner);
}

}  // namespace

absl::StatusOr<size_t> WriteToTargets(const ResponsePlan& plan,
                                      WorkResult& result) {
  const ResultTargets& targets = plan.targets;
  if (targets.weights != nullptr) SpreadWeights(plan, result.weights);
  const std::pair<const RegionRange*, Block*> tensors[] = {
      {targets.output.get(), &result.output},
      {targets.log_sum_exp.get(), &result.log_sum_exp},
      {targets.weights.get(), &result.weights}};
  size_t written_bytes = 0;
  for (auto [target, block] : tensors) {
    if (target == nullptr) continue;
    // Without a block, the device has written it.
    absl::Status status =
        block->size() == 0
            ? target->CheckDirect()
            : target->Write(
                  {static_cast<const char*>(block->data()), block->size()});
    if (!status.ok()) return status;
    written_bytes += target->size_bytes();
    block->Reset();
  }
  return written_bytes;
}

grpc::ByteBuffer EncodeResponse(const ResponsePlan& plan, WorkResult result,
                                std::shared_ptr<void> keep_alive) {
  SpreadWeights(plan, result.weights);
  Slices slices;
  slices.push_back(SerializeMetadata(plan, result));
  AppendTensor(Response::kOutputFieldNumber, std::move(result.output), keep_alive,
               slices);
  AppendTensor(Response::kLogSumExpFieldNumber, std::move(result.log_sum_exp),
               keep_alive, slices);
  AppendTensor(Response::kWeightsFieldNumber, std::move(result.weights),
               keep_alive, slices);
  return grpc::ByteBuffer(slices.data(), slices.size());
}

}  // namespace attention
