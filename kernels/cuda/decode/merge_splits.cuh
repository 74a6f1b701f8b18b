// Merges the partial results of rows whose keys were split, in the block that
// has computed the last of them. See merge.cu for a kernel that does so.
#ifndef ATTENTION_KERNELS_CUDA_DECODE_MERGE_SPLITS_CUH_
#define ATTENTION_KERNELS_CUDA_DECODE_MERGE_SPLITS_CUH_

#include "kernels/cuda/decode/attend_warp.cuh"

namespace attention::cuda::decode {

// All of a problem's rows, by the warps that compute: each takes 64 columns of
// a row at a time, two a lane, through all splits, always in the same order.
template <typename Tile>
__device__ void MergeRows(const BlockProblem& problem) {
  using Bits = typename Element<typename Tile::T>::Bits;
  constexpr unsigned kAll = 0xffffffffu;
  constexpr int kColumns = Tile::kColumns;
  constexpr int kParts = kColumns / 64;
  const int lane = AttendWarp<Tile>::Lane();
  const AttendEntry& e = problem.entry;
  const int splits = static_cast<int>(e.splits);
  const int64_t stride = e.rows * (kColumns + 2);  // between splits
  const float factor = problem.scale.factor;
#pragma unroll 1
  for (int part = AttendWarp<Tile>::Warp(); part < problem.rows * kParts;
       part += Tile::kWarps) {
    const int row = part / kParts;
    const int column = part % kParts * 64 + lane * 2;
    const float* const from = problem.PartialOfSplit(0) + row * (kColumns + 2);
    // Other multiprocessors wrote all this: it is in the L2 cache.
    const auto load = [&](int split, int at) {
      return __ldcg(
          reinterpret_cast<const float2*>(from + split * stride + at));
    };
    RowState state;
    for (int split = lane; split < splits; split += 32) {
      state.max = fmaxf(state.max, load(split, kColumns).x);
    }
    for (int step = 16; step > 0; step /= 2) {
      state.max = fmaxf(state.max, __shfl_xor_sync(kAll, state.max, step));
    }
    float2 o = {0, 0};
#pragma unroll 1
    for (int first = 0; first < splits; first += 32) {
      const int count = min(splits - first, 32);
      float weight = 0;
      if (lane < count) {
        const float2 of_split = load(first + lane, kColumns);
        weight = exp2f((of_split.x - state.Base()) * factor);
        state.sum += of_split.y * weight;
      }
      // Many loads at a time: each takes long.
      constexpr int kLoads = 16;
#pragma unroll 1
      for (int i = 0; i < count; i += kLoads) {
        float2 values[kLoads];
#pragma unroll
        for (int j = 0; j < kLoads; ++j) {
          values[j] = make_float2(0, 0);
          if (i + j < count) values[j] = load(first + i + j, column);
        }
#pragma unroll
        for (int j = 0; j < kLoads; ++j) {
          const float w = __shfl_sync(kAll, weight, i + j);
          o.x = fmaf(values[j].x, w, o.x);
          o.y = fmaf(values[j].y, w, o.y);
        }
      }
    }
    for (int step = 16; step > 0; step /= 2) {
      state.sum += __shfl_xor_sync(kAll, state.sum, step);
    }
    Bits* const to = problem.template OutputRow<Bits>(row);
    const int64_t dim = e.output_strides.dim;
    const auto normalized = [&](float value) {
      return Element<typename Tile::T>::FromFloat(
          state.sum == 0 ? 0.0f : value / state.sum);
    };
    to[column * dim] = normalized(o.x);
    to[(column + 1) * dim] = normalized(o.y);
    if (column == 0) problem.StoreLogSumExp(row, state.LogSumExp(factor));
  }
}

}  // namespace attention::cuda::decode

#endif  // ATTENTION_KERNELS_CUDA_DECODE_MERGE_SPLITS_CUH_
