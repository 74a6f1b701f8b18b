#include "kernels/cuda/decode/decode.h"

#include <algorithm>
#include <initializer_list>

#include "kernels/cuda/decode/kernels.h"
#include "kernels/cuda/decode/table.h"

namespace attention::cuda {
namespace decode {
namespace {

using Candidates = std::initializer_list<const AttendKernel*>;

// In order of preference; the first that fits is taken. The last one runs on
// any device.
Candidates CandidatesFor(const PagedConfig& config, int table) {
  static constexpr Candidates kBFloat[] = {
      {&kBFloatFew64, &kBFloatFew128, &kBFloatFew256, &kFmaBFloat},
      {&kBFloatMany64, &kBFloatMany128, &kBFloatMany256, &kFmaBFloat}};
  static constexpr Candidates kBFloatFloat8[] = {
      {&kBFloatFloat8Few64, &kBFloatFloat8Few128, &kBFloatFloat8Few256,
       &kFmaBFloatFloat8},
      {&kBFloatFloat8Many64, &kBFloatFloat8Many128, &kBFloatFloat8Many256,
       &kFmaBFloatFloat8}};
  static constexpr Candidates kHalf[] = {
      {&kHalfFew64, &kHalfFew128, &kHalfFew256, &kFmaHalf},
      {&kHalfMany64, &kHalfMany128, &kHalfMany256, &kFmaHalf}};
  static constexpr Candidates kHalfFloat8[] = {
      {&kHalfFloat8Few64, &kHalfFloat8Few128, &kHalfFloat8Few256,
       &kFmaHalfFloat8},
      {&kHalfFloat8Many64, &kHalfFloat8Many128, &kHalfFloat8Many256,
       &kFmaHalfFloat8}};
  static constexpr Candidates kFloat[] = {{&kFmaFloat}, {&kFmaFloatFloat8}};
  const bool float8 = config.kv_data_type == KvDataType::kFloat8E4M3;
  switch (config.heads.data_type) {
    case DataType::kFloat16:
      return float8 ? kHalfFloat8[table] : kHalf[table];
    case DataType::kBFloat16:
      return float8 ? kBFloatFloat8[table] : kBFloat[table];
    case DataType::kFloat32:
      break;
  }
  return kFloat[float8];
}

cudaError_t ChooseKernel(const PagedConfig& config, int table,
                         const AttendKernel** chosen) {
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  int shared_limit = 0;
  error = cudaDeviceGetAttribute(
      &shared_limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error != cudaSuccess) return error;

  const int columns =
      std::max(config.heads.head_dim_qk, config.heads.head_dim_v);
  for (const AttendKernel* kernel : CandidatesFor(config, table)) {
    if (kernel->columns < columns) continue;
    cudaFuncAttributes attributes;
    error = cudaFuncGetAttributes(
        &attributes, reinterpret_cast<const void*>(kernel->function));
    if (error != cudaSuccess) return error;
    const int shared =
        static_cast<int>(attributes.sharedSizeBytes) + kernel->shared_bytes;
    if (kernel->min_arch <= attributes.ptxVersion && shared <= shared_limit) {
      *chosen = kernel;
      return cudaSuccess;
    }
  }
  return cudaErrorNotSupported;
}

cudaError_t LaunchAttend(const PagedConfig& config, int index,
                         const AttendTable& table, cudaStream_t stream) {
  constexpr int64_t kMaxGrid = (int64_t{1} << 31) - 1;
  if (table.count == 0) return cudaSuccess;
  const AttendKernel* kernel = nullptr;
  cudaError_t error = ChooseKernel(config, index, &kernel);
  if (error != cudaSuccess) return error;
  const void* function = reinterpret_cast<const void*>(kernel->function);
  error = cudaFuncSetAttribute(function,
                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                               kernel->shared_bytes);
  HeadConfig heads = config.heads;
  PageGeometry geometry(config);
  AttendTable blocks = table;
  for (int64_t first = 0; first < table.block_count; first += kMaxGrid) {
    if (error != cudaSuccess) return error;
    void* arguments[] = {&heads, &geometry, &blocks, &first};
    const auto count =
        static_cast<unsigned>(std::min(kMaxGrid, table.block_count - first));
    error = cudaLaunchKernel(function, dim3(count), dim3(kernel->threads),
                             arguments, kernel->shared_bytes, stream);
  }
  if (error != cudaSuccess) return error;
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
    error = decode::LaunchAttend(params.config, i, tables.attend[i], stream);
  }
  return error;
}

}  // namespace attention::cuda
