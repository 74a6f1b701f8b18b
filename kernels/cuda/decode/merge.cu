// Merges the partial results of sequences whose keys were split.
#include "kernels/cuda/decode/block_problem.cuh"
#include "kernels/cuda/decode/kernels.h"
#include "kernels/cuda/decode/merge_splits.cuh"
#include "kernels/cuda/overlapping_launch.h"
#include "kernels/cuda/portable/element.cuh"

namespace attention::cuda::decode {
namespace {

constexpr int kWarps = 8;  // of a block: each merges a row

template <typename T, int kColumns>
__global__ void __launch_bounds__(kWarps * 32, 2)
    MergeKernel(HeadConfig config, AttendTable table) {
  using Bits = typename portable::Element<T>::Bits;
  WaitForPreviousKernel();
  LetNextKernelCome();
  const int64_t merged_row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (merged_row >= table.merged_rows) return;
  const AttendEntry& e =
      table.entries[FindEntryByWarp(table.entries, 0, table.count, merged_row,
                                    &AttendEntry::first_merged_row)];
  const int64_t local = merged_row - e.first_merged_row;
  const auto kv_head = static_cast<int>(local / e.rows);
  const int64_t row = local % e.rows;
  const int dims = config.head_dim_v;
  const int64_t stride = e.rows * PartialColumns(dims);  // between splits
  const float* const from =
      e.partials + (kv_head * e.splits * e.rows + row) * PartialColumns(dims);
  const float factor =
      portable::ScoreScale::From(
          e.scale * (e.key_scales == nullptr ? 1.0 : e.key_scales[kv_head]))
          .factor;
  const int lane = threadIdx.x % 32;
  MergedRow<kColumns, 32 / kColumns> merged;
  merged.Merge(from, dims, stride, static_cast<int>(e.splits), factor,
               [&](const float* partial, float(&values)[kColumns]) {
#pragma unroll
                 for (int c = 0; c < kColumns; ++c) {
                   const int column = c * 32 + lane;
                   if (column < dims) {
                     values[c] = __ldcg(partial + column);
                   }
                 }
               });
  const int heads = config.query_head_count / config.kv_head_count;
  const int64_t query = row / heads;
  const int64_t head = kv_head * heads + row % heads;
  auto* const to = static_cast<Bits*>(e.output) +
                   query * e.output_strides.token +
                   head * e.output_strides.head;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const int column = c * 32 + lane;
    if (column < dims) {
      to[column * e.output_strides.dim] =
          portable::Element<T>::FromFloat(merged.Output(c));
    }
  }
  if (lane == 0 && e.log_sum_exp != nullptr) {
    e.log_sum_exp[query * e.log_sum_exp_token_stride +
                  head * e.log_sum_exp_head_stride] =
        merged.state.LogSumExp(factor);
  }
}

template <typename T>
const void* KernelFor(int32_t head_dim_v) {
  if (head_dim_v <= 64) return reinterpret_cast<const void*>(MergeKernel<T, 2>);
  if (head_dim_v <= 128) {
    return reinterpret_cast<const void*>(MergeKernel<T, 4>);
  }
  static_assert(kMaxHeadDim <= 256);
  return reinterpret_cast<const void*>(MergeKernel<T, 8>);
}

}  // namespace

cudaError_t MergeSplits(const PagedConfig& config, const AttendTable& table,
                        cudaStream_t stream) {
  if (table.merged_rows == 0) return cudaSuccess;
  const void* function = nullptr;
  switch (config.heads.data_type) {
    case DataType::kFloat32:
      function = KernelFor<float>(config.heads.head_dim_v);
      break;
    case DataType::kFloat16:
      function = KernelFor<__half>(config.heads.head_dim_v);
      break;
    case DataType::kBFloat16:
      function = KernelFor<__nv_bfloat16>(config.heads.head_dim_v);
      break;
    case DataType::kFloat8E4M3:  // never of a paged config
      return cudaErrorInvalidValue;
  }
  HeadConfig heads = config.heads;
  AttendTable rows = table;
  void* arguments[] = {&heads, &rows};
  return LaunchOverlapping(function, (table.merged_rows + kWarps - 1) / kWarps,
                           kWarps * 32, 0, stream, arguments);
}

}  // namespace attention::cuda::decode
