// Merges the partial results of rows whose keys were split, a row by a warp.
#ifndef ATTENTION_KERNELS_CUDA_DECODE_MERGE_SPLITS_CUH_
#define ATTENTION_KERNELS_CUDA_DECODE_MERGE_SPLITS_CUH_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/decode/block_problem.cuh"
#include "kernels/cuda/portable/problem.cuh"

namespace attention::cuda::decode {

// The merged result of one row, kColumns of its columns in each lane. Reads
// kSplits partial results at a time.
template <int kColumns, int kSplits>
struct MergedRow {
  portable::RowState state;
  float o[kColumns] = {};

  // Of partial results that lie `stride` floats apart: load(partial, values)
  // reads what one has in this lane's columns; its maximum and its sum are
  // behind the columns. Always in the order of the keys. Each load takes long,
  // so that there are many at a time.
  template <typename Load>
  __device__ void Merge(const float* partial, int columns, int64_t stride,
                        int splits, float factor, Load load) {
    constexpr unsigned kAll = 0xffffffffu;
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (; splits > 0; splits -= kSplits) {
      // Other multiprocessors wrote all this: it is in the L2 cache.
      float max_of_split = -INFINITY;
      float sum_of_split = 0;
      if (lane < min(splits, kSplits)) {
        const float* const state_of_split = partial + lane * stride + columns;
        max_of_split = __ldcg(state_of_split);
        sum_of_split = __ldcg(state_of_split + 1);
      }
      float values[kSplits][kColumns] = {};
#pragma unroll
      for (int s = 0; s < kSplits; ++s) {
        if (s < splits) load(partial, values[s]);
        partial += stride;
      }
      float max = max_of_split;
      for (int step = 16; step > 0; step /= 2) {
        max = fmaxf(max, __shfl_xor_sync(kAll, max, step));
      }
      const float rescale = state.Raise(max, factor);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) o[c] *= rescale;
      const float weight = exp2f((max_of_split - state.Base()) * factor);
      state.sum += sum_of_split * weight;  // of this lane's splits
#pragma unroll
      for (int s = 0; s < kSplits; ++s) {
        const float w = __shfl_sync(kAll, weight, s);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) o[c] = fmaf(values[s][c], w, o[c]);
      }
    }
    for (int step = 16; step > 0; step /= 2) {
      state.sum += __shfl_xor_sync(kAll, state.sum, step);
    }
  }

  __device__ float Output(int column) const {
    return state.sum == 0 ? 0.0f : o[column] / state.sum;
  }
};

// All of a problem's rows, in the block that has computed the last of their
// splits, as one of the Tile::kWarps warps that compute.
template <typename Tile>
__device__ void MergeRows(const BlockProblem& problem, int warp) {
  using Bits = typename portable::Element<typename Tile::T>::Bits;
  constexpr int kColumns = Tile::kColumns / 32;
  using Vector = std::conditional_t<kColumns == 2, float2, float4>;
  constexpr int kVectorColumns = sizeof(Vector) / sizeof(float);
  const int lane = threadIdx.x % 32;
  const AttendEntry& e = problem.entry;
  const int64_t stride = e.rows * PartialColumns(Tile::kColumns);
#pragma unroll 1
  for (int row = warp; row < problem.rows; row += Tile::kWarps) {
    const float* const from =
        problem.PartialOfSplit(0) + row * PartialColumns(Tile::kColumns);
    // Each load takes long, so that there are many at a time.
    MergedRow<kColumns, std::min(16, 64 / kColumns)> merged;
    merged.Merge(
        from, Tile::kColumns, stride, static_cast<int>(e.splits),
        problem.scale.factor,
        [&](const float* partial, float(&values)[kColumns]) {
#pragma unroll
          for (int v = 0; v < kColumns / kVectorColumns; ++v) {
            *reinterpret_cast<Vector*>(&values[v * kVectorColumns]) = __ldcg(
                reinterpret_cast<const Vector*>(partial + lane * kColumns) + v);
          }
        });
    Bits* const to = problem.template OutputRow<Bits>(row);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      to[(lane * kColumns + c) * e.output_strides.dim] =
          portable::Element<typename Tile::T>::FromFloat(merged.Output(c));
    }
    if (lane == 0) {
      problem.StoreLogSumExp(row, merged.state.LogSumExp(problem.scale.factor));
    }
  }
}

}  // namespace attention::cuda::decode

#endif  // ATTENTION_KERNELS_CUDA_DECODE_MERGE_SPLITS_CUH_
