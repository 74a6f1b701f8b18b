// The three kernels. Each is a one-dimensional grid over all blocks of a turn.
#ifndef ATTENTION_KERNELS_CUDA_THREE_STEP_KERNELS_CUH_
#define ATTENTION_KERNELS_CUDA_THREE_STEP_KERNELS_CUH_

#include <cstdint>

#include "kernels/cuda/three_step/slice.h"
#include "kernels/cuda/three_step/tile_product.cuh"
#include "kernels/softmax_state.h"

namespace attention::cuda::three_step {

// kTileRows query rows of one head of a slice.
struct RowTile {
  int64_t head;       // in the slice
  int64_t first_row;  // in the slice
  int rows;

  __device__ RowTile(const Slice& slice, int64_t index) {
    const int64_t tiles = CeilDiv(slice.query_count, kTileRows);
    head = index / tiles;
    first_row = index % tiles * kTileRows;
    rows = static_cast<int>(
        min(slice.query_count - first_row, static_cast<int64_t>(kTileRows)));
  }

  __device__ KeyRange VisibleKeys(const Slice& slice) const {
    const int64_t first = slice.first_query + first_row;
    return slice.band.VisibleKeys(first, first + rows - 1);
  }

  // Row 0 of the tile in the slice's scores.
  __device__ float* Scores(const Slice& slice) const {
    return slice.scores +
           (head * slice.query_count + first_row) * slice.score_stride;
  }
};

template <typename T>
__device__ const void* HeadOf(const void* tensor, const TensorStrides& strides,
                              int64_t token, int64_t head) {
  return static_cast<const typename Element<T>::Bits*>(tensor) +
         token * strides.token + head * strides.head;
}

inline __device__ int64_t KvHead(const HeadConfig& config, const Slice& slice,
                                 int64_t head) {
  return (slice.first_head + head) /
         (config.query_head_count / config.kv_head_count);
}

// The scale in fp32. Clamped so that a score of zero stays zero: no factor that
// fp32 can tell from the bound makes finite scores meaningful.
inline __device__ float ScoreScale(double scale) {
  constexpr double kLargest = 1e30;
  return static_cast<float>(fmin(fmax(scale, -kLargest), kLargest));
}

// S = scale * Q K^T for one tile of one head. Tiles that no row sees are left
// unwritten; nothing reads them.
template <typename T>
__global__ void __launch_bounds__(kThreads, 2)
    ScoreKernel(HeadConfig config, SliceTable table, int64_t first_block) {
  constexpr int kColumns = 8;
  __shared__ __align__(16) SharedTile<kTileRows> query_tiles[2];
  __shared__ __align__(16) SharedTile<kTileKeys> key_tiles[2];

  const int64_t block = first_block + blockIdx.x;
  const Slice& slice = table.Find(kScores, block);
  const Sequence& s = slice.sequence;
  const int64_t tiles_per_row = CeilDiv(s.key_length, kTileKeys);
  const int64_t local = block - slice.first_block[kScores];
  const RowTile tile(slice, local / tiles_per_row);
  const int64_t first_key = local % tiles_per_row * kTileKeys;
  const int keys = static_cast<int>(
      min(s.key_length - first_key, static_cast<int64_t>(kTileKeys)));
  const KeyRange visible = tile.VisibleKeys(slice);
  if (first_key >= visible.end || first_key + keys <= visible.begin) return;

  const RowOperand<T> query(
      HeadOf<T>(s.query, s.query_strides, slice.first_query + tile.first_row,
                slice.first_head + tile.head),
      s.query_strides.token, s.query_strides.dim, tile.rows,
      config.head_dim_qk);
  const RowOperand<T> key(HeadOf<T>(s.key, s.key_strides, first_key,
                                    KvHead(config, slice, tile.head)),
                          s.key_strides.token, s.key_strides.dim, keys,
                          config.head_dim_qk);

  float sum[kThreadRows][kColumns] = {};
  float next_query[RowOperand<T>::kCount];
  float next_key[RowOperand<T>::kCount];
  query.Fetch(0, next_query);
  key.Fetch(0, next_key);
  query.Store(next_query, query_tiles[0]);
  key.Store(next_key, key_tiles[0]);
  __syncthreads();
  int current = 0;
#pragma unroll 1
  for (int dim = 0; dim < config.head_dim_qk; dim += kDepth) {
    const bool last = dim + kDepth >= config.head_dim_qk;
    if (!last) {
      query.Fetch(dim + kDepth, next_query);
      key.Fetch(dim + kDepth, next_key);
    }
    Accumulate<false>(query_tiles[current], key_tiles[current], DepthBand{},
                      sum);
    current ^= 1;
    if (!last) {
      query.Store(next_query, query_tiles[current]);
      key.Store(next_key, key_tiles[current]);
    }
    __syncthreads();
  }

  const float scale = ScoreScale(s.scale);
  float* const scores = tile.Scores(slice) + first_key;
#pragma unroll
  for (int r = 0; r < kThreadRows; ++r) {
    if (ThreadRow(r) >= tile.rows) continue;
    float* const row = scores + ThreadRow(r) * slice.score_stride;
#pragma unroll
    for (int c = 0; c < kColumns; c += 4) {
      const int column = ThreadColumn(c);
      const float4 four = {scale * sum[r][c], scale * sum[r][c + 1],
                           scale * sum[r][c + 2], scale * sum[r][c + 3]};
      if (!slice.scores_are_weights && column + 4 <= keys) {
        *reinterpret_cast<float4*>(row + column) = four;
        continue;
      }
      if (column < keys) row[column] = four.x;
      if (column + 1 < keys) row[column + 1] = four.y;
      if (column + 2 < keys) row[column + 2] = four.z;
      if (column + 3 < keys) row[column + 3] = four.w;
    }
  }
}

// P = softmax(S) over the visible keys of each row, in place; a warp per row.
// Writes the log-sum-exp, and the weights where they are returned.
template <typename T>
__global__ void __launch_bounds__(kSoftmaxRows * 32)
    SoftmaxKernel(HeadConfig, SliceTable table, int64_t first_block) {
  constexpr unsigned kAllLanes = 0xffffffffu;
  const int64_t block = first_block + blockIdx.x;
  const Slice& slice = table.Find(kSoftmax, block);
  const Sequence& s = slice.sequence;
  const int lane = threadIdx.x % 32;
  const int64_t row =
      (block - slice.first_block[kSoftmax]) * kSoftmaxRows + threadIdx.x / 32;
  if (row >= slice.head_count * slice.query_count) return;
  const int64_t head = slice.first_head + row / slice.query_count;
  const int64_t query = slice.first_query + row % slice.query_count;
  const KeyRange keys = slice.band.VisibleKeys(query);
  float* const scores = slice.scores + row * slice.score_stride;

  SoftmaxState<float> state;
  for (int64_t j = keys.begin + lane; j < keys.end; j += 32) {
    state.Merge({scores[j], 1.0f});
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    state.Merge({__shfl_down_sync(kAllLanes, state.m, distance),
                 __shfl_down_sync(kAllLanes, state.l, distance)});
  }
  const float max = __shfl_sync(kAllLanes, state.m, 0);
  const float sum = __shfl_sync(kAllLanes, state.l, 0);
  const float normalizer = SoftmaxState<float>{max, sum}.Normalizer();
  if (lane == 0 && s.log_sum_exp != nullptr) {
    s.log_sum_exp[query * s.log_sum_exp_token_stride +
                  head * s.log_sum_exp_head_stride] = state.LogSumExp();
  }

  using Bits = typename Element<T>::Bits;
  Bits* const weights =
      s.weights == nullptr || slice.scores_are_weights
          ? nullptr
          : static_cast<Bits*>(s.weights) +
                (head * s.query_length + query) * s.key_length;
  const bool whole_row = s.weights != nullptr;
  const int64_t begin = whole_row ? 0 : keys.begin;
  const int64_t end = whole_row ? s.key_length : keys.end;
  for (int64_t j = begin + lane; j < end; j += 32) {
    const bool visible = j >= keys.begin && j < keys.end;
    // A sum of zero: every visible score is -inf, and so is `max`.
    const float weight =
        visible && sum != 0 ? expf(scores[j] - max) * normalizer : 0.0f;
    if (visible || slice.scores_are_weights) scores[j] = weight;
    if (weights != nullptr) weights[j] = Element<T>::FromFloat(weight);
  }
}

// The mask relative to a tile's first query and key. Bounds beyond the tile are
// all the same.
inline __device__ DepthBand BandFrom(const MaskBand& band, int64_t first_query,
                                     int64_t first_key) {
  constexpr int64_t kBeyond = 2 * (kTileRows + kDepth);
  const int64_t diagonal = first_key - first_query;
  return {static_cast<int>(max(min(band.lower - diagonal, kBeyond), -kBeyond)),
          static_cast<int>(max(min(band.upper - diagonal, kBeyond), -kBeyond))};
}

// O = P V for one tile of one head. Sums of kFlushKeys keys are added to a
// total, which keeps the rounding error of long sums small.
template <typename T>
__global__ void __launch_bounds__(kThreads, 2)
    OutputKernel(HeadConfig config, SliceTable table, int64_t first_block) {
  constexpr int kColumns = 4;
  constexpr int kFlushKeys = 512;
  using Bits = typename Element<T>::Bits;
  __shared__ __align__(16) SharedTile<kTileRows> weight_tiles[2];
  __shared__ __align__(16) SharedTile<kTileColumns> value_tiles[2];

  const int64_t block = first_block + blockIdx.x;
  const Slice& slice = table.Find(kOutput, block);
  const Sequence& s = slice.sequence;
  const int64_t column_tiles = CeilDiv(config.head_dim_v, kTileColumns);
  const int64_t local = block - slice.first_block[kOutput];
  const RowTile tile(slice, local / column_tiles);
  const int first_column =
      static_cast<int>(local % column_tiles) * kTileColumns;
  const int columns = min(config.head_dim_v - first_column, kTileColumns);
  const int64_t first_query = slice.first_query + tile.first_row;
  const KeyRange keys = tile.VisibleKeys(slice);

  float total[kThreadRows][kColumns] = {};
  if (keys.begin < keys.end) {
    const Bits* const values =
        static_cast<const Bits*>(HeadOf<T>(s.value, s.value_strides, keys.begin,
                                           KvHead(config, slice, tile.head)));
    const RowOperand<float> weight(tile.Scores(slice) + keys.begin,
                                   slice.score_stride, 1, tile.rows,
                                   keys.end - keys.begin);
    const ColumnOperand<T> value(values + first_column * s.value_strides.dim,
                                 s.value_strides.token, s.value_strides.dim,
                                 keys.end - keys.begin, columns);

    float sum[kThreadRows][kColumns] = {};
    float next_weight[RowOperand<float>::kCount];
    float next_value[ColumnOperand<T>::kCount];
    weight.Fetch(0, next_weight);
    value.Fetch(0, next_value);
    weight.Store(next_weight, weight_tiles[0]);
    value.Store(next_value, value_tiles[0]);
    __syncthreads();
    int current = 0;
#pragma unroll 1
    for (int64_t key = 0; key < keys.end - keys.begin; key += kDepth) {
      const bool last = key + kDepth >= keys.end - keys.begin;
      if (!last) {
        weight.Fetch(key + kDepth, next_weight);
        value.Fetch(key + kDepth, next_value);
      }
      const int64_t first_key = keys.begin + key;
      if (slice.band.SeesAll(first_query, first_query + tile.rows - 1,
                             {first_key, first_key + kDepth})) {
        Accumulate<false>(weight_tiles[current], value_tiles[current],
                          DepthBand{}, sum);
      } else {
        Accumulate<true>(weight_tiles[current], value_tiles[current],
                         BandFrom(slice.band, first_query, first_key), sum);
      }
      current ^= 1;
      if (!last) {
        weight.Store(next_weight, weight_tiles[current]);
        value.Store(next_value, value_tiles[current]);
      }
      if (last || (key + kDepth) % kFlushKeys == 0) {
#pragma unroll
        for (int r = 0; r < kThreadRows; ++r) {
#pragma unroll
          for (int c = 0; c < kColumns; ++c) {
            total[r][c] += sum[r][c];
            sum[r][c] = 0.0f;
          }
        }
      }
      __syncthreads();
    }
  }

  Bits* const output = static_cast<Bits*>(s.output) +
                       first_query * s.output_strides.token +
                       (slice.first_head + tile.head) * s.output_strides.head +
                       first_column * s.output_strides.dim;
#pragma unroll
  for (int r = 0; r < kThreadRows; ++r) {
    if (ThreadRow(r) >= tile.rows) continue;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (ThreadColumn(c) >= columns) continue;
      output[ThreadRow(r) * s.output_strides.token +
             ThreadColumn(c) * s.output_strides.dim] =
          Element<T>::FromFloat(total[r][c]);
    }
  }
}

}  // namespace attention::cuda::three_step

#endif  // ATTENTION_KERNELS_CUDA_THREE_STEP_KERNELS_CUH_
