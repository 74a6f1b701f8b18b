#include "server/rpc/result_stream.h"

#include <algorithm>
#include <utility>


namespace attention {
namespace {

// As much as a client does best to send at a time; see attention.proto.
constexpr int64_t kMaxChunkBytes = int64_t{2} << 20;
constexpr int64_t kMinChunkBytes = 256;
// Beside a chunk: the answer without its tensors, in the first message.
constexpr int64_t kMetadataBytes = 2 * kResponseMetadataBytes;

}  // namespace

ResultStream::ResultStream(const ResponsePlan& plan, WorkResult result,
                           int64_t max_message_bytes,
                           std::shared_ptr<void> keep_alive)
    : chunk_bytes_(static_cast<size_t>(
          std::clamp(max_message_bytes - kMetadataBytes, kMinChunkBytes,
                     kMaxChunkBytes))),
      metadata_(std::in_place) {
  SetMetadata(plan, result, *metadata_);
  SpreadWeights(plan, result.weights);
  const std::pair<v1::Tensor, Block*> blocks[] = {
      {v1::TENSOR_WEIGHTS, &result.weights},
      {v1::TENSOR_LOG_SUM_EXP, &result.log_sum_exp},
      {v1::TENSOR_OUTPUT, &result.output}};
  for (auto [name, block] : blocks) {
    if (block->size() == 0) continue;
    tensors_.push_back({name, std::make_shared<const SharedBlock>(SharedBlock{
                                  keep_alive, std::move(*block)})});
  }
}

std::optional<grpc::ByteBuffer> ResultStream::Next() {
  if (!metadata_.has_value() && tensors_.empty()) return std::nullopt;
  v1::StreamAttentionResponse message;
  if (metadata_.has_value()) {
    *message.mutable_result() = *std::move(metadata_);
    metadata_.reset();
  }
  if (tensors_.empty()) {
    const grpc::Slice slice(message.SerializeAsString());
    return grpc::ByteBuffer(&slice, 1);
  }
  const Tensor& tensor = tensors_.back();
  message.set_tensor(tensor.name);
  message.set_byte_offset(static_cast<int64_t>(offset_));
  const size_t tensor_size = tensor.memory->block.size();
  const size_t size = std::min(chunk_bytes_, tensor_size - offset_);
  const PayloadHeader header(v1::StreamAttentionResponse::kDataFieldNumber,
                             size);
  const grpc::Slice slices[] = {
      grpc::Slice(message.SerializeAsString()),
      grpc::Slice(header.data(), header.size()),
      SliceOf(tensor.memory, offset_, size)};
  offset_ += size;
  if (offset_ == tensor_size) {
    tensors_.pop_back();
    offset_ = 0;
  }
  return grpc::ByteBuffer(slices, 3);
}

}  // namespace attention
