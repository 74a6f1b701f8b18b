#include "kernels/cuda/portable/streaming.h"

#include <algorithm>
#include <initializer_list>

#include "kernels/cuda/kernel_choice.h"
#include "kernels/cuda/portable/float8.h"
#include "kernels/cuda/portable/kernels.h"
#include "kernels/cuda/sequence_table.h"

namespace attention::cuda::portable {
namespace {

using Candidates = std::initializer_list<const StreamingKernel*>;

// In order of preference; the first that fits is taken. The last ones run on
// any device.
Candidates CandidatesFor(const HeadConfig& config) {
  static constexpr Candidates kHalf = {&kHalf64,  &kHalf64Small,  &kHalf96,
                                       &kHalf128, &kHalf128Small, &kHalf192,
                                       &kHalf256, &kHalf256Small};
  static constexpr Candidates kBFloat = {
      &kBFloat64,    &kBFloat96,     &kBFloat128,
      &kBFloat192,   &kBFloat256,    &kBFloat256Small,
      &kFmaBFloat64, &kFmaBFloat128, &kFmaBFloat256};
  static constexpr Candidates kFma = {
      &kFma64, &kFma64Small, &kFma128, &kFma128Small, &kFma256, &kFma256Small};
  static constexpr Candidates kTf32 = {
      &kTf32At64,       &kTf32At128, &kTf32At128Small, &kTf32At256,
      &kTf32At256Small, &kFma64,     &kFma64Small,     &kFma128,
      &kFma128Small,    &kFma256,    &kFma256Small};
  switch (config.data_type) {
    case DataType::kFloat16:
      return kHalf;
    case DataType::kBFloat16:
      return kBFloat;
    case DataType::kFloat8E4M3:  // computed as fp16 (float8.h)
      return {};
    case DataType::kFloat32:
      break;
  }
  return config.precision == Precision::kIeee ? kFma : kTf32;
}

cudaError_t FindKernelFor(const HeadConfig& config, const DeviceLimits& limits,
                          const StreamingKernel** found) {
  const int columns = std::max(config.head_dim_qk, config.head_dim_v);
  const auto fits = [columns](const StreamingKernel& kernel) {
    return kernel.columns >= columns;
  };
  return FindKernel(CandidatesFor(config), fits, limits, found);
}

// Ready to be launched on the current device. A thread mostly launches the same
// again, and asking CUDA takes longer than a small launch.
cudaError_t ChooseKernel(const HeadConfig& config, const DeviceLimits& limits,
                         const StreamingKernel** chosen) {
  struct Choice {
    HeadConfig config;
    DeviceLimits limits;
    int device = -1;
    const StreamingKernel* kernel = nullptr;
  };
  static thread_local Choice last;
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  if (last.device != device || last.config != config || last.limits != limits) {
    last.device = -1;
    error = FindKernelFor(config, limits, &last.kernel);
    if (error != cudaSuccess) return error;
    last = {config, limits, device, last.kernel};
  }
  *chosen = last.kernel;
  return cudaSuccess;
}

// These, for fp16.
HalfKernels HalfKernelsWithin(const DeviceLimits& limits) {
  return {.scratch_size = ScratchSize,
          .launch = [limits](const AttentionParams& params,
                             const Scratch& scratch, cudaStream_t stream) {
            return Launch(params, scratch, stream, limits);
          }};
}

}  // namespace

ScratchBytes ScratchSize(const AttentionParams& params) {
  if (params.config.data_type == DataType::kFloat8E4M3) {
    return Float8ScratchSize(params, HalfKernelsWithin({}));
  }
  const size_t bytes = SequenceTableBytes(params.sequence_count);
  return {.host_bytes = bytes, .device_bytes = bytes};
}

cudaError_t Launch(const AttentionParams& params, const Scratch& scratch,
                   cudaStream_t stream, const DeviceLimits& limits) {
  if (params.config.data_type == DataType::kFloat8E4M3) {
    return LaunchFloat8(params, scratch, stream, HalfKernelsWithin(limits));
  }
  HeadConfig config = params.config;
  const StreamingKernel* kernel = nullptr;
  cudaError_t error = ChooseKernel(config, limits, &kernel);
  if (error != cudaSuccess) return error;

  const auto blocks_of = [&](const Sequence& s) {
    const int64_t tiles =
        (s.query_length + kernel->block_m - 1) / kernel->block_m;
    return tiles * config.query_head_count;
  };
  SequenceTable table;
  error = MakeSequenceTable(config, params.sequences, params.sequence_count,
                            blocks_of, scratch, stream, &table);
  if (error != cudaSuccess || table.block_count == 0) return error;

  const void* function = reinterpret_cast<const void*>(kernel->function);
  LaunchBlocks(table.block_count, [&](int64_t first_block, unsigned blocks) {
    if (error != cudaSuccess) return;
    void* arguments[] = {&config, &table, &first_block};
    error = cudaLaunchKernel(function, dim3(blocks), dim3(kernel->threads),
                             arguments, kernel->shared_bytes, stream);
  });
  return error;
}

}  // namespace attention::cuda::portable
