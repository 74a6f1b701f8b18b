#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/three_step/kernels.cuh"
#include "kernels/cuda/three_step/slice.h"
#include "kernels/cuda/three_step/three_step.h"
#include "kernels/cuda/upload.h"

namespace attention::cuda::three_step {
namespace {

size_t TableBytes(int64_t slice_count) {
  return AlignScratch(static_cast<size_t>(slice_count) * sizeof(Slice));
}

using Kernel = void (*)(HeadConfig, SliceTable, int64_t first_block);

template <typename T>
cudaError_t RunTurn(const HeadConfig& config, const SliceTable& table,
                    const int64_t (&begin)[kStageCount],
                    const int64_t (&end)[kStageCount], cudaStream_t stream) {
  constexpr int64_t kMaxGrid = (int64_t{1} << 31) - 1;
  constexpr Kernel kKernels[kStageCount] = {ScoreKernel<T>, SoftmaxKernel<T>,
                                            OutputKernel<T>};
  constexpr int kBlockThreads[kStageCount] = {kThreads, kSoftmaxRows * 32,
                                              kThreads};
  for (int stage = 0; stage < kStageCount; ++stage) {
    for (int64_t block = begin[stage]; block < end[stage]; block += kMaxGrid) {
      const auto blocks =
          static_cast<unsigned>(std::min(kMaxGrid, end[stage] - block));
      kKernels[stage]<<<blocks, kBlockThreads[stage], 0, stream>>>(
          config, table, block);
      if (cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
        return error;
      }
    }
  }
  return cudaSuccess;
}

}  // namespace

ScratchBytes ScratchSize(const AttentionParams& params) {
  const SlicePlanner plan(params, nullptr, nullptr);
  const size_t table_bytes = TableBytes(plan.slice_count());
  return {table_bytes, table_bytes + plan.scores_bytes()};
}

cudaError_t Launch(const AttentionParams& params, const Scratch& scratch,
                   cudaStream_t stream) {
  const int64_t slice_count =
      SlicePlanner(params, nullptr, nullptr).slice_count();
  if (slice_count == 0) return cudaSuccess;
  auto* const slices = static_cast<Slice*>(scratch.host);
  const SlicePlanner plan(
      params, slices,
      reinterpret_cast<float*>(static_cast<std::byte*>(scratch.device) +
                               TableBytes(slice_count)));
  if (cudaError_t error = Upload(scratch.host, scratch.device,
                                 TableBytes(slice_count), stream);
      error != cudaSuccess) {
    return error;
  }

  for (int64_t first = 0; first < slice_count;) {
    int64_t last = first + 1;
    while (last < slice_count && !slices[last].starts_turn) ++last;
    const SliceTable table = {static_cast<const Slice*>(scratch.device) + first,
                              last - first};
    int64_t end[kStageCount];
    for (int stage = 0; stage < kStageCount; ++stage) {
      end[stage] = last < slice_count
                       ? slices[last].first_block[stage]
                       : plan.block_count(static_cast<Stage>(stage));
    }
    const auto& begin = slices[first].first_block;
    cudaError_t error = cudaErrorInvalidValue;
    switch (params.config.data_type) {
      case DataType::kFloat32:
        error = RunTurn<float>(params.config, table, begin, end, stream);
        break;
      case DataType::kFloat16:
        error = RunTurn<__half>(params.config, table, begin, end, stream);
        break;
      case DataType::kBFloat16:
        error =
            RunTurn<__nv_bfloat16>(params.config, table, begin, end, stream);
        break;
      case DataType::kFloat8E4M3:  // never of this algorithm
        break;
    }
    if (error != cudaSuccess) return error;
    first = last;
  }
  return cudaSuccess;
}

}  // namespace attention::cuda::three_step
