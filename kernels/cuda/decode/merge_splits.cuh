// Merges the partial results of rows whose keys were split, in the block that
// has computed the last of them. See merge.cu for a kernel that does so.
#ifndef ATTENTION_KERNELS_CUDA_DECODE_MERGE_SPLITS_CUH_
#define ATTENTION_KERNELS_CUDA_DECODE_MERGE_SPLITS_CUH_

#include "kernels/cuda/decode/attend_warp.cuh"

namespace attention::cuda::decode {

// All of a problem's rows, a row to each of the warps that compute at a time,
// always in the order of the keys. Each load takes long, so that there are many
// at a time.
template <typename Tile>
__device__ void MergeRows(const BlockProblem& problem) {
  using Bits = typename Element<typename Tile::T>::Bits;
  constexpr unsigned kAll = 0xffffffffu;
  constexpr int kColumns = Tile::kColumns / 32;  // of a lane
  constexpr int kSplits = 64 / kColumns;         // at a time
  using Vector = std::conditional_t<kColumns == 2, float2, float4>;
  constexpr int kVectorColumns = sizeof(Vector) / sizeof(float);
  const int lane = AttendWarp<Tile>::Lane();
  const AttendEntry& e = problem.entry;
  const int splits = static_cast<int>(e.splits);
  const int64_t stride =
      e.rows * PartialColumns(Tile::kColumns);  // between splits
  const float factor = problem.scale.factor;
#pragma unroll 1
  for (int row = AttendWarp<Tile>::Warp(); row < problem.rows;
       row += Tile::kWarps) {
    const float* const from =
        problem.PartialOfSplit(0) + row * PartialColumns(Tile::kColumns);
    RowState state;  // the sum is this lane's
    float o[kColumns] = {};
#pragma unroll 1
    for (int first = 0; first < splits; first += kSplits) {
      // Other multiprocessors wrote all this: it is in the L2 cache.
      const float* const batch = from + first * stride;
      float2 of_split = make_float2(-INFINITY, 0);
      if (lane < kSplits && first + lane < splits) {
        of_split = __ldcg(reinterpret_cast<const float2*>(
            batch + lane * stride + Tile::kColumns));
      }
      float values[kSplits][kColumns] = {};
#pragma unroll
      for (int s = 0; s < kSplits; ++s) {
        if (first + s >= splits) continue;
#pragma unroll
        for (int v = 0; v < kColumns / kVectorColumns; ++v) {
          *reinterpret_cast<Vector*>(&values[s][v * kVectorColumns]) =
              __ldcg(reinterpret_cast<const Vector*>(batch + s * stride +
                                                     lane * kColumns) +
                     v);
        }
      }
      float max = of_split.x;
      for (int step = 16; step > 0; step /= 2) {
        max = fmaxf(max, __shfl_xor_sync(kAll, max, step));
      }
      const float rescale = state.Raise(max, factor);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) o[c] *= rescale;
      const float weight = exp2f((of_split.x - state.Base()) * factor);
      state.sum += of_split.y * weight;
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
    Bits* const to = problem.template OutputRow<Bits>(row);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      to[(lane * kColumns + c) * e.output_strides.dim] =
          Element<typename Tile::T>::FromFloat(
              state.sum == 0 ? 0.0f : o[c] / state.sum);
    }
    if (lane == 0) problem.StoreLogSumExp(row, state.LogSumExp(factor));
  }
}

}  // namespace attention::cuda::decode

#endif  // ATTENTION_KERNELS_CUDA_DECODE_MERGE_SPLITS_CUH_
