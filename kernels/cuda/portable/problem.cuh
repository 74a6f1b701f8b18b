// What one thread block of the streaming kernels works on.
#ifndef ATTENTION_KERNELS_CUDA_PORTABLE_PROBLEM_CUH_
#define ATTENTION_KERNELS_CUDA_PORTABLE_PROBLEM_CUH_

#include <cfloat>
#include <cstdint>

#include "kernels/attention_params.h"
#include "kernels/cuda/portable/tile_io.cuh"
#include "kernels/cuda/sequence_table.h"
#include "kernels/mask.h"

namespace attention::cuda::portable {

inline constexpr float kLn2 = 0.6931471805599453f;

// How the scale enters: scores are in units of log2 and exp2 replaces exp. The
// running maximum is taken before the multiplication, which therefore has to
// be by a positive number: the sign moves into the query, which is exact, and
// a scale of zero becomes a query of zeros (and of NaN where it was not finite:
// 0 * inf is NaN, as it would have been).
struct ScoreScale {
  float factor;  // > 0 and finite
  enum Query { kKeep, kNegate, kZero } query;

  static __device__ ScoreScale From(double scale) {
    constexpr double kLog2EDouble = 1.4426950408889634074;
    constexpr double kLargest = 1e30;  // scores stay finite in fp32
    const double magnitude = fmin(fabs(scale) * kLog2EDouble, kLargest);
    if (magnitude < FLT_MIN) return {1.0f, kZero};
    return {static_cast<float>(magnitude), scale < 0 ? kNegate : kKeep};
  }
};

// Applies ScoreScale::query to a query tile of `T` elements, in shared memory.
template <typename T, int kRows, int kWidthBytes, int kRowBytes, int kThreads>
__device__ void AdjustQuery(uint8_t* tile, ScoreScale::Query how) {
  ForEachWord<true, kRows, kWidthBytes, kRowBytes, kThreads>(
      tile, [how](uint32_t& word) {
        // A word of all ones is NaN in every type.
        word = how == ScoreScale::kNegate ? word ^ Element<T>::kSignBits
                                          : Element<T>::NonFinite(word);
      });
}

// Query rows [first_query, first_query + rows) of one head of one sequence.
// Kept in shared memory: the kernels have no registers to spare for it.
template <typename T, int kBlockM, int kBlockN>
struct BlockProblem {
  using Bits = typename Element<T>::Bits;

  HeadView<const Bits> query, key, value;
  HeadView<Bits> output;
  float* log_sum_exp;  // of query 0; may be null
  int64_t log_sum_exp_stride;

  MaskBand band;
  int64_t first_query;
  int rows;
  int64_t first_tile, last_tile;  // key tiles that some row sees: [first, last)
  ScoreScale scale;

  // Every head has its own run of blocks, last rows first: under a causal mask
  // those have the most work, and work that starts late should be short.
  static __device__ BlockProblem Make(const HeadConfig& config,
                                      const SequenceEntry& entry,
                                      int64_t block) {
    BlockProblem p;
    const Sequence& s = entry.sequence;
    const int64_t tiles = (s.query_length + kBlockM - 1) / kBlockM;
    const int64_t local = block - entry.first_block;
    const int64_t head = local / tiles;
    const int64_t kv_head =
        head / (config.query_head_count / config.kv_head_count);
    p.first_query = (tiles - 1 - local % tiles) * kBlockM;
    p.rows = static_cast<int>(
        min(s.query_length - p.first_query, static_cast<int64_t>(kBlockM)));

    p.query = View<const Bits>(s.query, s.query_strides, head,
                               config.head_dim_qk, entry.query_is_vectorizable);
    p.key = View<const Bits>(s.key, s.key_strides, kv_head, config.head_dim_qk,
                             entry.key_is_vectorizable);
    p.value = View<const Bits>(s.value, s.value_strides, kv_head,
                               config.head_dim_v, entry.value_is_vectorizable);
    p.output = View<Bits>(s.output, s.output_strides, head, config.head_dim_v,
                          entry.output_is_vectorizable);
    p.log_sum_exp = s.log_sum_exp == nullptr
                        ? nullptr
                        : s.log_sum_exp + head * s.log_sum_exp_head_stride;
    p.log_sum_exp_stride = s.log_sum_exp_token_stride;

    p.band = MakeMaskBand(config.mask, s);
    const KeyRange keys =
        p.band.VisibleKeys(p.first_query, p.first_query + p.rows - 1);
    p.first_tile = keys.begin / kBlockN;
    p.last_tile = keys.begin < keys.end ? (keys.end + kBlockN - 1) / kBlockN
                                        : p.first_tile;
    p.scale = ScoreScale::From(s.scale * HeadScale(s.query_scales, head) *
                               HeadScale(s.key_scales, kv_head));
    return p;
  }

  // Keys of a tile that exist.
  __device__ int TileKeys(int64_t tile) const {
    return static_cast<int>(
        min(band.key_end - tile * kBlockN, static_cast<int64_t>(kBlockN)));
  }

  // Whether some row does not see some key of the tile.
  __device__ bool NeedsMask(int64_t tile) const {
    return !SeesAll(tile, kBlockN);
  }

  // Whether rows differ in which existing keys of the tile they see.
  __device__ bool IsMixed(int64_t tile) const {
    return !SeesAll(tile, TileKeys(tile));
  }

  // The keys that `row` of the block sees, relative to the tile.
  struct Columns {
    int begin, end;
  };
  __device__ Columns VisibleColumns(int row, int64_t tile) const {
    const KeyRange keys = band.VisibleKeys(first_query + row);
    return {Clamp(keys.begin - tile * kBlockN),
            Clamp(keys.end - tile * kBlockN)};
  }

  __device__ void StoreLogSumExp(int row, float value) const {
    if (log_sum_exp != nullptr && row < rows) {
      log_sum_exp[(first_query + row) * log_sum_exp_stride] = value;
    }
  }

 private:
  template <typename B, typename Pointer>
  static __device__ HeadView<B> View(Pointer* data,
                                     const TensorStrides& strides, int64_t head,
                                     int dims, bool vectorizable) {
    return {static_cast<B*>(data) + head * strides.head, strides.token,
            strides.dim, dims, vectorizable};
  }
  // Scales are in device memory here (float8.h).
  static __device__ double HeadScale(const float* scales, int64_t head) {
    return scales == nullptr ? 1.0 : scales[head];
  }
  static __device__ int Clamp(int64_t column) {
    return static_cast<int>(
        min(max(column, int64_t{0}), static_cast<int64_t>(kBlockN)));
  }
  __device__ bool SeesAll(int64_t tile, int keys) const {
    const int64_t first_key = tile * kBlockN;
    return band.SeesAll(first_query, first_query + rows - 1,
                        {first_key, first_key + keys});
  }
};

// The online softmax of one row. Scores enter before the scale, and weights are
// exp2((score - base) * factor): subtracting first is exact where it matters,
// whatever the magnitude of the scores.
struct RowState {
  float max = -INFINITY;
  float sum = 0;

  // The maximum, or 0 while that is -inf: -inf - -inf would be NaN.
  __device__ float Base() const { return max == -INFINITY ? 0.0f : max; }

  // Takes in the largest score of the next keys; returns the factor for what
  // was accumulated before.
  __device__ float Raise(float new_max, float factor) {
    const float old = max;
    max = fmaxf(max, new_max);
    const float rescale = exp2f((old - Base()) * factor);
    sum *= rescale;
    return rescale;
  }

  // Natural log; -inf for a row without visible keys.
  __device__ float LogSumExp(float factor) const {
    return sum == 0 ? -INFINITY : fmaf(max, factor, log2f(sum)) * kLn2;
  }
};

}  // namespace attention::cuda::portable

#endif  // ATTENTION_KERNELS_CUDA_PORTABLE_PROBLEM_CUH_
