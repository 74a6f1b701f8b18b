// What becomes of the accumulators of a block's warps in the end.
#ifndef ATTENTION_KERNELS_CUDA_DECODE_STORE_WARPS_CUH_
#define ATTENTION_KERNELS_CUDA_DECODE_STORE_WARPS_CUH_

#include "kernels/cuda/decode/attend_tile.cuh"
#include "kernels/cuda/decode/attend_warp.cuh"
#include "kernels/cuda/decode/block_problem.cuh"
#include "kernels/cuda/decode/store.cuh"

namespace attention::cuda::decode {

// Each warp has its own rows.
template <typename Tile>
__device__ void StoreRows(AttendWarp<Tile>& warp, const BlockProblem& problem) {
  using Warp = AttendWarp<Tile>;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = Warp::Row(half);
    if (row >= problem.rows) continue;
    if (Warp::Lane() % 4 == 0) StoreState(problem, row, warp.state[half]);
#pragma unroll
    for (int n = 0; n < Warp::kColumnTiles; ++n) {
#pragma unroll
      for (int e = 2 * half; e < 2 * half + 2; ++e) {
        StoreColumn<typename Tile::T>(problem, row, Warp::Column(n, e),
                                      warp.o[n][e], warp.state[half].sum);
      }
    }
  }
}

// Of rows that warps share.
template <typename Tile>
struct WarpStates {
  float maxima[Tile::kWarps][Tile::kRows];
  float sums[Tile::kWarps][Tile::kRows];
};

// Where they put an element of an accumulator: rows that are written together
// must not meet in a bank.
__device__ inline int MergeColumn(int row, int column) {
  return column ^ row % 4 * 8;
}

// All warps have the same rows: adds up what they have in `o`, in shared
// memory, [warp][row][column].
template <typename Tile>
__device__ void MergeWarps(AttendWarp<Tile>& warp, const BlockProblem& problem,
                           float* o, WarpStates<Tile>& states) {
  using Warp = AttendWarp<Tile>;
  constexpr int kWarps = Tile::kWarps;
  constexpr int kRows = Tile::kRows;
  constexpr int kColumns = Tile::kColumns;
  auto& maxima = states.maxima;
  auto& sums = states.sums;
  if (Warp::Lane() % 4 == 0) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      maxima[Warp::Warp()][Warp::Row(half)] = warp.state[half].max;
    }
  }
  SyncWarps<Tile>();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = Warp::Row(half);
    float max = maxima[0][row];
    for (int w = 1; w < kWarps; ++w) max = fmaxf(max, maxima[w][row]);
    const float weight = warp.state[half].Raise(max, problem.scale.factor);
    if (Warp::Lane() % 4 == 0) sums[Warp::Warp()][row] = warp.state[half].sum;
    if (row >= problem.rows) continue;
    float* to = o + (Warp::Warp() * kRows + row) * kColumns;
#pragma unroll
    for (int n = 0; n < Warp::kColumnTiles; ++n) {
      const float* const from = &warp.o[n][2 * half];
      if constexpr (Tile::kFloat8) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          to[MergeColumn(row, Warp::Column(n, e))] = from[e] * weight;
        }
      } else {
        *reinterpret_cast<float2*>(to + MergeColumn(row, Warp::Column(n, 0))) =
            make_float2(from[0] * weight, from[1] * weight);
      }
    }
  }
  SyncWarps<Tile>();
  const auto sum_of = [&](int row) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += sums[w][row];
    return sum;
  };
  for (int row = threadIdx.x; row < problem.rows; row += Tile::kThreads) {
    RowState state;
    state.sum = sum_of(row);
    for (int w = 0; w < kWarps; ++w) {
      state.max = fmaxf(state.max, maxima[w][row]);
    }
    StoreState(problem, row, state);
  }
  constexpr int kVectors = kColumns / 4;  // of a row
  const bool is_split = problem.entry.splits > 1;
  for (int i = threadIdx.x; i < problem.rows * kVectors; i += Tile::kThreads) {
    const int row = i / kVectors;
    const int column = i % kVectors * 4;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float4 part = *reinterpret_cast<const float4*>(
          o + (w * kRows + row) * kColumns + MergeColumn(row, column));
      sum.x += part.x;
      sum.y += part.y;
      sum.z += part.z;
      sum.w += part.w;
    }
    if (is_split && column + 4 <= problem.head_dim_v) {
      const float scale = problem.value_scale;
      *reinterpret_cast<float4*>(problem.Partial(row) + column) = make_float4(
          sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale);
      continue;
    }
    const float row_sum = sum_of(row);
    const float values[] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      StoreColumn<typename Tile::T>(problem, row, column + c, values[c],
                                    row_sum);
    }
  }
}

}  // namespace attention::cuda::decode

#endif  // ATTENTION_KERNELS_CUDA_DECODE_STORE_WARPS_CUH_
