// Merges the partial results of sequences whose keys were split.
#include "kernels/cuda/decode/kernels.h"
#include "kernels/cuda/portable/element.cuh"
#include "kernels/cuda/portable/problem.cuh"

namespace attention::cuda::decode {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kMaxColumnsPerLane = kMaxHeadDim / 32;

// One row by one block: each warp adds up every kWarps-th split, then the
// warps' sums are added, always in the same order.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    MergeKernel(HeadConfig config, AttendTable table) {
  using Bits = typename portable::Element<T>::Bits;
  __shared__ float sums[kWarps][kMaxHeadDim + 1];
  __shared__ float maxima[kWarps];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int dims = config.head_dim_v;
  const AttendEntry& e = FindEntry(table.entries, table.count, blockIdx.x,
                                   &AttendEntry::first_merged_row);
  const int64_t local = blockIdx.x - e.first_merged_row;
  const int kv_head = static_cast<int>(local / e.rows);
  const int64_t row = local % e.rows;
  const int64_t stride = e.rows * table.partial_columns;  // between splits
  const float* partial =
      e.partials + (kv_head * e.splits * e.rows + row) * table.partial_columns;
  const float factor =
      portable::ScoreScale::From(
          e.scale * (e.key_scales == nullptr ? 1.0 : e.key_scales[kv_head]))
          .factor;

  float max = -INFINITY;
  for (int64_t s = threadIdx.x; s < e.splits; s += kThreads) {
    max = fmaxf(max, partial[s * stride + dims]);
  }
  for (int step = 16; step > 0; step /= 2) {
    max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, step));
  }
  if (lane == 0) maxima[warp] = max;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) max = fmaxf(max, maxima[w]);
  const float base = max == -INFINITY ? 0.0f : max;

  float sum = 0;
  float o[kMaxColumnsPerLane] = {};
#pragma unroll 4
  for (int64_t s = warp; s < e.splits; s += kWarps) {
    const float* from = partial + s * stride;
    const float weight = exp2f((from[dims] - base) * factor);
    sum += from[dims + 1] * weight;
#pragma unroll
    for (int i = 0; i < kMaxColumnsPerLane; ++i) {
      if (lane + 32 * i < dims) o[i] += from[lane + 32 * i] * weight;
    }
  }
#pragma unroll
  for (int i = 0; i < kMaxColumnsPerLane; ++i) {
    if (lane + 32 * i < dims) sums[warp][lane + 32 * i] = o[i];
  }
  if (lane == 0) sums[warp][dims] = sum;
  __syncthreads();

  float total = 0;
  for (int w = 0; w < kWarps; ++w) total += sums[w][dims];
  const int group = config.query_head_count / config.kv_head_count;
  const int64_t query = row / group;
  const int64_t head = kv_head * group + row % group;
  auto* output = static_cast<Bits*>(e.output) +
                 query * e.output_strides.token + head * e.output_strides.head;
  for (int column = threadIdx.x; column < dims; column += kThreads) {
    float value = 0;
    for (int w = 0; w < kWarps; ++w) value += sums[w][column];
    output[column * e.output_strides.dim] =
        portable::Element<T>::FromFloat(total == 0 ? 0.0f : value / total);
  }
  if (threadIdx.x == 0 && e.log_sum_exp != nullptr) {
    e.log_sum_exp[query * e.log_sum_exp_token_stride +
                  head * e.log_sum_exp_head_stride] =
        portable::RowState{max, total}.LogSumExp(factor);
  }
}

}  // namespace

cudaError_t MergeSplits(const PagedConfig& config, const AttendTable& table,
                        cudaStream_t stream) {
  if (table.merged_rows == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(table.merged_rows);
  switch (config.heads.data_type) {
    case DataType::kFloat32:
      MergeKernel<float><<<blocks, kThreads, 0, stream>>>(config.heads, table);
      break;
    case DataType::kFloat16:
      MergeKernel<__half><<<blocks, kThreads, 0, stream>>>(config.heads, table);
      break;
    case DataType::kBFloat16:
      MergeKernel<__nv_bfloat16>
          <<<blocks, kThreads, 0, stream>>>(config.heads, table);
      break;
  }
  return cudaGetLastError();
}

}  // namespace attention::cuda::decode
