#include "server/rpc/response_encoder.h"

#include "grpc/slice.h"
#include "grpcpp/support/slice.h"
#include "server/rpc/message_arena.h"
#include "server/rpc/response_parts.h"

namespace attention {
namespace {

using Response = v1::ComputeAttentionResponse;

grpc::Slice SerializeMetadata(const ResponsePlan& plan,
                              const WorkResult& result) {
  MessageArena arena;
  Response& response = arena.Create<Response>();
  SetMetadata(plan, result, response);
  grpc_slice slice = grpc_slice_malloc(response.ByteSizeLong());
  response.SerializeWithCachedSizesToArray(GRPC_SLICE_START_PTR(slice));
  return {slice, grpc::Slice::STEAL_REF};
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
  const PayloadHeader header(field, block.size());
  slices.emplace_back(header.data(), header.size());
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
