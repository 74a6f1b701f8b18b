// Pieces of a batch: query heads and query rows of one sequence whose scores
// lie side by side in memory.
#ifndef ATTENTION_KERNELS_CUDA_THREE_STEP_SLICE_H_
#define ATTENTION_KERNELS_CUDA_THREE_STEP_SLICE_H_

#include <cstddef>
#include <cstdint>

#include "kernels/attention_params.h"
#include "kernels/cuda/find_entry.h"
#include "kernels/host_device.h"
#include "kernels/mask.h"

namespace attention::cuda::three_step {

inline constexpr int kTileRows = 128;    // queries of a thread block
inline constexpr int kTileKeys = 128;    // keys, when computing scores
inline constexpr int kTileColumns = 64;  // value dims, when computing outputs
inline constexpr int kSoftmaxRows = 8;   // rows of a softmax block

enum Stage { kScores, kSoftmax, kOutput, kStageCount };

struct Slice {
  Sequence sequence;
  MaskBand band;
  int64_t first_head, head_count;
  int64_t first_query, query_count;
  float* scores;  // [head_count, query_count, N], rows score_stride apart
  int64_t score_stride;              // elements
  bool scores_are_weights;           // `scores` is where weights are returned
  bool starts_turn;                  // overwrites the scores of earlier slices
  int64_t first_block[kStageCount];  // thread blocks of all earlier slices
};

// The slices of one turn, in device memory.
struct SliceTable {
  const Slice* slices;
  int64_t count;

  // The slice that owns `block` of a stage.
  ATTENTION_HOST_DEVICE const Slice& Find(Stage stage, int64_t block) const {
    return FindEntry(slices, count, block, [stage](const Slice& slice) {
      return slice.first_block[stage];
    });
  }
};

ATTENTION_HOST_DEVICE constexpr int64_t CeilDiv(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Cuts a batch into slices. How a sequence is cut depends on nothing but the
// sequence, so that its answer does not depend on its batch mates.
class SlicePlanner {
 public:
  // With `slices` null it only counts.
  SlicePlanner(const AttentionParams& params, Slice* slices, float* scores);

  int64_t slice_count() const { return slice_count_; }
  size_t scores_bytes() const { return scores_bytes_; }  // of the largest turn
  // Thread blocks of all slices.
  int64_t block_count(Stage stage) const { return block_count_[stage]; }

 private:
  void PlanSequence(const HeadConfig& config, const Sequence& sequence);
  void Add(Slice slice, const HeadConfig& config, size_t bytes);

  Slice* slices_;
  float* scores_;
  int64_t slice_count_ = 0;
  size_t scores_bytes_ = 0;
  size_t turn_bytes_ = 0;  // of the turn under way
  int64_t block_count_[kStageCount] = {};
};

}  // namespace attention::cuda::three_step

#endif  // ATTENTION_KERNELS_CUDA_THREE_STEP_SLICE_H_
