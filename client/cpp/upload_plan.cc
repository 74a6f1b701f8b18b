#include "client/cpp/upload_plan.h"

#include <algorithm>

namespace attention {
namespace {

// Large enough that messages cost nothing beside their bytes, small enough that
// sending, receiving and copying to the device overlap.
constexpr size_t kChunkBytes = size_t{2} << 20;

}  // namespace

UploadPlan::UploadPlan(const AttentionRequest& request) {
  const std::pair<v1::Tensor, const TensorView*> views[] = {
      {v1::TENSOR_QUERY, &request.query},
      {v1::TENSOR_KEY, &request.key},
      {v1::TENSOR_VALUE, &request.value}};
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const auto& [name, view] = views[i];
    tensors_[i] = {name, static_cast<const char*>(view->data),
                   view->size_bytes};
    if (view->size_bytes > 0) {
      pieces_.push_back({name, 0, tensors_[i].data, view->size_bytes});
    }
  }
}

absl::Status UploadPlan::Skip(const v1::UploadState& state) {
  const google::protobuf::RepeatedPtrField<v1::ByteRange>* const ranges[] = {
      &state.query_ranges(), &state.key_ranges(), &state.value_ranges()};
  pieces_.clear();
  received_bytes_ = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const Tensor& tensor = tensors_[i];
    const auto size = static_cast<int64_t>(tensor.size);
    int64_t at = 0;
    const auto add_up_to = [&](int64_t end) {
      if (at == end) return;
      pieces_.push_back({tensor.name, at, tensor.data + at,
                         static_cast<size_t>(end - at)});
    };
    for (const v1::ByteRange& range : *ranges[i]) {
      if (range.byte_offset() < at || range.byte_size() < 0 ||
          range.byte_offset() > size ||
          range.byte_size() > size - range.byte_offset()) {
        return absl::InternalError(
            "the server claims to have bytes that are not in the request");
      }
      add_up_to(range.byte_offset());
      at = range.byte_offset() + range.byte_size();
      received_bytes_ += static_cast<size_t>(range.byte_size());
    }
    add_up_to(size);
  }
  return absl::OkStatus();
}

std::optional<UploadPlan::Chunk> UploadPlan::Next() {
  if (pieces_.empty()) return std::nullopt;
  Chunk& piece = pieces_.front();
  Chunk chunk = piece;
  chunk.size = std::min(piece.size, kChunkBytes);
  piece.byte_offset += static_cast<int64_t>(chunk.size);
  piece.data += chunk.size;
  piece.size -= chunk.size;
  if (piece.size == 0) pieces_.pop_front();
  return chunk;
}

}  // namespace attention
