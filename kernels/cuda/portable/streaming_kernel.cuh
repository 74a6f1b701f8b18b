// Streaming softmax attention: the walk that all portable kernels share.
//
// A block owns kBlockM query rows of one head and visits the key tiles that its
// rows see:
//
//   S = Q K^T;  m' = max(m, rowmax S);  P = exp2(c (S - m'));
//   O = exp2(c (m - m')) O + P V;  l likewise;   output = O / l
//
// (Dao 2023, "FlashAttention-2".) A worker (tensor_core.cuh, fma.cuh) is a
// thread's share of S, O, m and l, and the arithmetic. K and V have one buffer
// each: V loads while S is computed, the next K while softmax and P V run, and
// blocks that share a multiprocessor fill each other's gaps.
#ifndef ATTENTION_KERNELS_CUDA_PORTABLE_STREAMING_KERNEL_CUH_
#define ATTENTION_KERNELS_CUDA_PORTABLE_STREAMING_KERNEL_CUH_

#include "kernels/cuda/cut_alignment.h"
#include "kernels/cuda/portable/kernels.h"
#include "kernels/cuda/portable/problem.cuh"

namespace attention::cuda::portable {

// Makes a value tile safe to multiply where rows differ in the keys they see: a
// weight of 0 does not hide a NaN or an infinity. Non-finite values, which are
// rare, are added row by row and then set to zero.
template <typename Worker>
__device__ void IsolateNonFiniteValues(Worker& worker, uint8_t* value,
                                       const typename Worker::Problem& problem,
                                       int64_t tile) {
  using Tile = typename Worker::Tile;
  using Shared = Element<typename Tile::SharedType>;
  constexpr int kRows = Tile::kBlockN;
  uint32_t found = 0;
  ForEachWord<false, kRows, Tile::kWidthBytes, Tile::kRowBytes, Tile::kThreads>(
      value, [&](uint32_t word) { found |= Shared::NonFinite(word); });
  if (!__syncthreads_or(found != 0)) return;
  worker.AddNonFiniteValues(value, problem, tile);
  __syncthreads();
  ForEachWord<true, kRows, Tile::kWidthBytes, Tile::kRowBytes, Tile::kThreads>(
      value, [](uint32_t& word) { word &= ~Shared::NonFinite(word); });
  __syncthreads();
}

template <typename Worker>
__device__ void StreamKeys(const HeadConfig& config, const SequenceTable& table,
                           int64_t block) {
  using Tile = typename Worker::Tile;
  using Problem = typename Worker::Problem;
  constexpr int kBlockM = Tile::kBlockM;
  constexpr int kBlockN = Tile::kBlockN;
  extern __shared__ __align__(16) uint8_t shared[];
  uint8_t* const query = shared;
  uint8_t* const key = query + kBlockM * Tile::kRowBytes;
  uint8_t* const value = key + kBlockN * Tile::kRowBytes;

  __shared__ Problem problem;
  if (threadIdx.x == 0)
    problem = Problem::Make(config, table.Find(block), block);
  __syncthreads();
  const int64_t last_tile = problem.last_tile;
  const auto load = [](uint8_t* to, const auto& view, int64_t tile) {
    Worker::template Load<kBlockN>(to, view, tile * kBlockN,
                                   problem.TileKeys(tile));
  };
  Worker worker;

  if (problem.first_tile < last_tile) {
    Worker::template Load<kBlockM>(query, problem.query, problem.first_query,
                                   problem.rows);
    load(key, problem.key, problem.first_tile);
    if (problem.scale.query != ScoreScale::kKeep) {
      AsyncWait();
      __syncthreads();
      AdjustQuery<typename Tile::SharedType, kBlockM, Tile::kWidthBytes,
                  Tile::kRowBytes, Tile::kThreads>(query, problem.scale.query);
    }
  }

#pragma unroll 1
  for (int64_t tile = problem.first_tile; tile < last_tile; ++tile) {
    AsyncWait();
    __syncthreads();  // K is there, and nobody reads the previous V any more
    load(value, problem.value, tile);
    worker.ComputeScores(query, key);

    AsyncWait();
    __syncthreads();  // V is there, and nobody reads K any more
    if (tile + 1 < last_tile) load(key, problem.key, tile + 1);
    if (problem.NeedsMask(tile)) worker.MaskScores(problem, tile);
    worker.UpdateSoftmax(problem.scale.factor);
    if (problem.IsMixed(tile)) {
      IsolateNonFiniteValues(worker, value, problem, tile);
    }
    worker.AccumulateValues(value);
  }
  worker.Finish(query, problem);
}

template <typename Worker>
__global__ void __launch_bounds__(Worker::Tile::kThreads,
                                  Worker::Tile::kMinBlocks)
    StreamingKernelEntry(HeadConfig config,
                         const __grid_constant__ SequenceTable table,
                         int64_t first_block) {
  // Built for an older architecture, the kernel is never chosen.
#if __CUDA_ARCH__ >= 750
  if constexpr (__CUDA_ARCH__ >= Worker::Tile::kMinArch) {
    StreamKeys<Worker>(config, table, first_block + blockIdx.x);
  }
#endif
}

template <typename Worker>
constexpr StreamingKernel Describe() {
  using Tile = typename Worker::Tile;
  static_assert(kCutAlignment % Tile::kBlockM == 0 &&
                kCutAlignment % Tile::kBlockN == 0);
  return {StreamingKernelEntry<Worker>,
          Tile::kColumns,
          Tile::kBlockM,
          Tile::kThreads,
          Tile::kSharedBytes,
          Tile::kMinArch / 10};
}

}  // namespace attention::cuda::portable

#endif  // ATTENTION_KERNELS_CUDA_PORTABLE_STREAMING_KERNEL_CUH_
