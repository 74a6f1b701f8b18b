#include "kernels/cuda/decode/decode.h"

#include <algorithm>
#include <initializer_list>

#include "kernels/cuda/decode/kernels.h"
#include "kernels/cuda/decode/table.h"
#include "kernels/cuda/kernel_choice.h"
#include "kernels/cuda/overlapping_launch.h"

namespace attention::cuda {
namespace decode {
namespace {

using Candidates = std::initializer_list<const AttendKernel*>;

// In order of preference; the first that fits is taken. The last one runs on
// any device.
Candidates CandidatesFor(const PagedConfig& config, int table) {
  static constexpr Candidates kBFloat[] = {
      {&kBFloatFew64Streamed, &kBFloatFew128Streamed, &kBFloatFew256Streamed,
       &kBFloatFew64, &kBFloatFew128, &kBFloatFew256, &kFmaBFloat},
      {&kBFloatMany64Streamed, &kBFloatMany128Streamed, &kBFloatMany256Streamed,
       &kBFloatMany64, &kBFloatMany128, &kBFloatMany256, &kFmaBFloat}};
  static constexpr Candidates kBFloatFloat8[] = {
      {&kBFloatFloat8Few64Streamed, &kBFloatFloat8Few128Streamed,
       &kBFloatFloat8Few256Streamed, &kBFloatFloat8Few64, &kBFloatFloat8Few128,
       &kBFloatFloat8Few256, &kFmaBFloatFloat8},
      {&kBFloatFloat8Many64Streamed, &kBFloatFloat8Many128Streamed,
       &kBFloatFloat8Many256Streamed, &kBFloatFloat8Many64,
       &kBFloatFloat8Many128, &kBFloatFloat8Many256, &kFmaBFloatFloat8}};
  static constexpr Candidates kHalf[] = {
      {&kHalfFew64Streamed, &kHalfFew128Streamed, &kHalfFew256Streamed,
       &kHalfFew64, &kHalfFew128, &kHalfFew256, &kFmaHalf},
      {&kHalfMany64Streamed, &kHalfMany128Streamed, &kHalfMany256Streamed,
       &kHalfMany64, &kHalfMany128, &kHalfMany256, &kFmaHalf}};
  static constexpr Candidates kHalfFloat8[] = {
      {&kHalfFloat8Few64Streamed, &kHalfFloat8Few128Streamed,
       &kHalfFloat8Few256Streamed, &kHalfFloat8Few64, &kHalfFloat8Few128,
       &kHalfFloat8Few256, &kFmaHalfFloat8},
      {&kHalfFloat8Many64Streamed, &kHalfFloat8Many128Streamed,
       &kHalfFloat8Many256Streamed, &kHalfFloat8Many64, &kHalfFloat8Many128,
       &kHalfFloat8Many256, &kFmaHalfFloat8}};
  static constexpr Candidates kFloat[] = {{&kFmaFloat}, {&kFmaFloatFloat8}};
  const bool float8 = config.kv_data_type == KvDataType::kFloat8E4M3;
  switch (config.heads.data_type) {
    case DataType::kFloat16:
      return float8 ? kHalfFloat8[table] : kHalf[table];
    case DataType::kBFloat16:
      return float8 ? kBFloatFloat8[table] : kBFloat[table];
    case DataType::kFloat8E4M3:  // never of a paged config
    case DataType::kFloat32:
      break;
  }
  return kFloat[float8];
}

cudaError_t FindKernelFor(const PagedConfig& config, int table,
                          const AttendKernel** found) {
  const int columns =
      std::max(config.heads.head_dim_qk, config.heads.head_dim_v);
  const bool is_even = config.heads.head_dim_qk == config.heads.head_dim_v;
  const auto fits = [=](const AttendKernel& kernel) {
    return kernel.is_exact ? is_even && kernel.columns == columns
                           : kernel.columns >= columns;
  };
  return FindKernel(CandidatesFor(config, table), fits, DeviceLimits(), found);
}

// A kernel that is ready to be launched on the current device.
struct Choice {
  PagedConfig config;
  int device = -1;
  int processors = 0;
  const AttendKernel* kernel = nullptr;
};

// A thread mostly launches the same again, and asking CUDA takes longer than a
// small launch.
cudaError_t ChooseKernel(const PagedConfig& config, int table, Choice* choice) {
  static thread_local Choice last[kTableCount];
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  if (last[table].device != device || last[table].config != config) {
    Choice found = {.config = config, .device = device};
    error = FindKernelFor(config, table, &found.kernel);
    if (error == cudaSuccess) {
      error = GetAttribute(cudaDevAttrMultiProcessorCount, &found.processors);
    }
    if (error != cudaSuccess) return error;
    last[table] = found;
  }
  *choice = last[table];
  return cudaSuccess;
}

cudaError_t LaunchAttend(const PagedConfig& config, const LaunchTables& tables,
                         int index, cudaStream_t stream) {
  constexpr int64_t kMaxGrid = (int64_t{1} << 31) - 1;
  static constexpr FirstEntries kNoEntries = {};
  AttendTable table = tables.attend[index];
  if (table.block_count == 0) return cudaSuccess;
  Choice choice;
  cudaError_t error = ChooseKernel(config, index, &choice);
  if (error != cudaSuccess) return error;
  const AttendKernel* kernel = choice.kernel;
  HeadConfig heads = config.heads;
  PageGeometry geometry(config);
  const auto launch = [&](const void* last_argument, int64_t count) {
    void* arguments[] = {&heads, &geometry, &table,
                         const_cast<void*>(last_argument)};
    return LaunchOverlapping(kernel->function, count, kernel->threads,
                             kernel->shared_bytes, stream, arguments);
  };
  if (kernel->blocks_per_processor > 0) {
    error = launch(
        index == 0 ? &tables.first : &kNoEntries,
        std::min<int64_t>(choice.processors * kernel->blocks_per_processor,
                          table.block_count));
  } else {
    for (int64_t first = 0; first < table.block_count; first += kMaxGrid) {
      if (error != cudaSuccess) return error;
      error = launch(&first, std::min(kMaxGrid, table.block_count - first));
    }
  }
  if (error != cudaSuccess || kernel->merges) return error;
  return MergeSplits(config, table, stream);
}

}  // namespace

}  // namespace decode

ScratchBytes PagedScratchSize(const PagedParams& params) {
  return decode::TableBytes(params);
}

cudaError_t LaunchPaged(const PagedParams& params, const Scratch& scratch,
                        cudaStream_t stream) {
  if (params.sequence_count == 0 && params.copy_count == 0) return cudaSuccess;
  decode::LaunchTables tables;
  cudaError_t error = decode::UploadTables(params, scratch, stream, &tables);
  if (error == cudaSuccess) {
    error = decode::CopyPages(params.config, tables, stream);
  }
  if (error == cudaSuccess) {
    error = decode::AppendRows(params.config, tables, stream);
  }
  for (int i = 0; i < decode::kTableCount; ++i) {
    if (error != cudaSuccess) return error;
    error = decode::LaunchAttend(params.config, tables, i, stream);
  }
  return error;
}

}  // namespace attention::cuda
