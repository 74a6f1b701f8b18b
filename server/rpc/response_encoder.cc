#include "server/rpc/response_encoder.h"

#include <algorithm>

#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/support/slice.h"
#include "server/rpc/message_arena.h"
#include "server/rpc/response_parts.h"

namespace attention {
namespace {

using ::google::protobuf::internal::WireFormatLite;
using Response = v1::ComputeAttentionResponse;
using StreamResponse = v1::StreamComputeAttentionResponse;

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
  const PayloadHeader header(field, block.size());
  slices.emplace_back(header.data(), header.size());
  void* const data = block.data();
  const size_t size = block.size();
  auto* owner = new SliceOwner{std::move(block), keep_alive};
  slices.emplace_back(
      data, size, [](void* p) { delete static_cast<SliceOwner*>(p); }, owner);
}

// The tag, and the response up to its tensors, which have so many bytes with
// their headers.
grpc::Slice SerializeInStream(const Response& metadata, int64_t tag,
                              size_t tensor_bytes) {
  uint8_t bytes[32];
  uint8_t* end = bytes;
  if (tag != 0) {
    end = WireFormatLite::WriteInt64ToArray(StreamResponse::kTagFieldNumber,
                                            tag, end);
  }
  const PayloadHeader header(StreamResponse::kResponseFieldNumber,
                             metadata.ByteSizeLong() + tensor_bytes);
  end = std::copy_n(header.data(), header.size(), end);
  return Serialize(metadata, {reinterpret_cast<const char*>(bytes),
                              static_cast<size_t>(end - bytes)});
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
                                std::shared_ptr<void> keep_alive,
                                std::optional<int64_t> tag) {
  SpreadWeights(plan, result.weights);
  MessageArena arena;
  Response& metadata = arena.Create<Response>();
  SetMetadata(plan, result, metadata);
  Slices slices(1);  // the first is made last: it may tell the others' length
  AppendTensor(Response::kOutputFieldNumber, std::move(result.output), keep_alive,
               slices);
  AppendTensor(Response::kLogSumExpFieldNumber, std::move(result.log_sum_exp),
               keep_alive, slices);
  AppendTensor(Response::kWeightsFieldNumber, std::move(result.weights),
               keep_alive, slices);
  size_t tensor_bytes = 0;
  for (const grpc::Slice& slice : slices) tensor_bytes += slice.size();
  slices.front() = tag.has_value()
                       ? SerializeInStream(metadata, *tag, tensor_bytes)
                       : Serialize(metadata);
  return grpc::ByteBuffer(slices.data(), slices.size());
}

}  // namespace attention
