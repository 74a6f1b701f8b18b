#include "kernels/cuda/three_step/slice.h"

#include <algorithm>

#include "kernels/cuda/three_step/three_step.h"

namespace attention::cuda::three_step {

SlicePlanner::SlicePlanner(const AttentionParams& params, Slice* slices,
                           float* scores)
    : slices_(slices), scores_(scores) {
  if (params.config.query_head_count == 0) return;
  for (int64_t i = 0; i < params.sequence_count; ++i) {
    if (params.sequences[i].query_length > 0) {
      PlanSequence(params.config, params.sequences[i]);
    }
  }
}

void SlicePlanner::PlanSequence(const HeadConfig& config, const Sequence& s) {
  const int64_t heads = config.query_head_count;
  Slice slice = {.sequence = s, .band = MakeMaskBand(config.mask, s)};
  if (s.key_length == 0 ||
      (s.weights != nullptr && config.data_type == DataType::kFloat32)) {
    slice.head_count = heads;
    slice.query_count = s.query_length;
    slice.scores = static_cast<float*>(s.weights);
    slice.score_stride = s.key_length;
    slice.scores_are_weights = true;
    Add(slice, config, 0);
    return;
  }
  // Rows start at multiples of 16 bytes, and slices of 256.
  slice.score_stride = CeilDiv(s.key_length, 4) * 4;
  const int64_t row_bytes = slice.score_stride * sizeof(float);
  const int64_t rows_that_fit =
      static_cast<int64_t>(kScoresBudgetBytes) / row_bytes;
  const int64_t max_queries =
      std::min(s.query_length,
               std::max(rows_that_fit / kTileRows, int64_t{1}) * kTileRows);
  const int64_t max_heads =
      std::clamp(rows_that_fit / s.query_length, int64_t{1}, heads);
  for (int64_t head = 0; head < heads; head += max_heads) {
    for (int64_t query = 0; query < s.query_length; query += max_queries) {
      slice.first_head = head;
      slice.head_count = std::min(max_heads, heads - head);
      slice.first_query = query;
      slice.query_count = std::min(max_queries, s.query_length - query);
      const int64_t rows = slice.head_count * slice.query_count;
      Add(slice, config, CeilDiv(rows * row_bytes, 256) * 256);
    }
  }
}

void SlicePlanner::Add(Slice slice, const HeadConfig& config, size_t bytes) {
  if (turn_bytes_ > 0 && turn_bytes_ + bytes > kScoresBudgetBytes) {
    slice.starts_turn = true;
    turn_bytes_ = 0;
  }
  if (slices_ != nullptr) {
    if (!slice.scores_are_weights) {
      slice.scores = scores_ + turn_bytes_ / sizeof(float);
    }
    std::copy_n(block_count_, kStageCount, slice.first_block);
    slices_[slice_count_] = slice;
  }
  ++slice_count_;
  turn_bytes_ += bytes;
  scores_bytes_ = std::max(scores_bytes_, turn_bytes_);

  const int64_t row_tiles =
      slice.head_count * CeilDiv(slice.query_count, kTileRows);
  block_count_[kScores] +=
      row_tiles * CeilDiv(slice.sequence.key_length, kTileKeys);
  block_count_[kSoftmax] +=
      CeilDiv(slice.head_count * slice.query_count, kSoftmaxRows);
  block_count_[kOutput] += row_tiles * CeilDiv(config.head_dim_v, kTileColumns);
}

}  // namespace attention::cuda::three_step
