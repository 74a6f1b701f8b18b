// Merges the partial results of sequences whose keys were split.
#include "kernels/cuda/decode/block_problem.cuh"
#include "kernels/cuda/decode/kernels.h"
#include "kernels/cuda/overlapping_launch.h"
#include "kernels/cuda/portable/element.cuh"

namespace attention::cuda::decode {
namespace {

constexpr int kThreads = 512;
constexpr int kMaxWarps = kThreads / 32;

// Over all threads of the block; `shared` holds a value per warp.
template <typename Operation>
__device__ float Reduce(float value, float* shared, Operation operation) {
  for (int step = 16; step > 0; step /= 2) {
    value = operation(value, __shfl_xor_sync(0xffffffffu, value, step));
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = shared[0];
  for (int w = 1; w < kMaxWarps; ++w) value = operation(value, shared[w]);
  __syncthreads();
  return value;
}

// One row by one block: groups of threads, a thread for each column, add up
// some of the splits each, then their sums are added, always in the same order.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    MergeKernel(HeadConfig config, AttendTable table) {
  using Bits = typename portable::Element<T>::Bits;
  __shared__ float weights[kThreads];
  __shared__ float sums[kThreads];
  __shared__ float reduction[kMaxWarps];
  WaitForPreviousKernel();
  LetNextKernelCome();
  const int dims = config.head_dim_v;
  const AttendEntry& e =
      table.entries[FindEntryByWarp(table.entries, 0, table.count, blockIdx.x,
                                    &AttendEntry::first_merged_row)];
  const int64_t local = blockIdx.x - e.first_merged_row;
  const int kv_head = static_cast<int>(local / e.rows);
  const int64_t row = local % e.rows;
  const int columns = PartialColumns(dims);
  const int64_t stride = e.rows * columns;  // between splits
  const float* partial =
      e.partials + (kv_head * e.splits * e.rows + row) * columns;
  const float factor =
      portable::ScoreScale::From(
          e.scale * (e.key_scales == nullptr ? 1.0 : e.key_scales[kv_head]))
          .factor;

  // Columns in use, as a multiple of a warp.
  const int width = (dims + 31) / 32 * 32;
  const int groups = kThreads / width;
  const int group = threadIdx.x / width;
  const int column = threadIdx.x % width;
  const bool is_used = group < groups && column < dims;
  portable::RowState state;
  float o = 0;
  for (int64_t first = 0; first < e.splits; first += kThreads) {
    const int count =
        static_cast<int>(min(e.splits - first, static_cast<int64_t>(kThreads)));
    float max = -INFINITY;
    float sum = 0;
    if (threadIdx.x < count) {
      max = partial[(first + threadIdx.x) * stride + dims];
      sum = partial[(first + threadIdx.x) * stride + dims + 1];
    }
    o *= state.Raise(
        Reduce(max, reduction, [](float a, float b) { return fmaxf(a, b); }),
        factor);
    const float weight = exp2f((max - state.Base()) * factor);
    weights[threadIdx.x] = weight;
    state.sum +=
        Reduce(sum * weight, reduction, [](float a, float b) { return a + b; });
    if (is_used) {
      const float* from = partial + first * stride + column;
#pragma unroll 16
      for (int s = group; s < count; s += groups) {
        o = fmaf(from[s * stride], weights[s], o);
      }
    }
    __syncthreads();
  }
  sums[threadIdx.x] = o;
  __syncthreads();

  const int heads = config.query_head_count / config.kv_head_count;
  const int64_t query = row / heads;
  const int64_t head = kv_head * heads + row % heads;
  if (threadIdx.x < dims) {
    float value = 0;
    for (int g = 0; g < groups; ++g) value += sums[g * width + column];
    auto* output = static_cast<Bits*>(e.output) +
                   query * e.output_strides.token +
                   head * e.output_strides.head;
    output[column * e.output_strides.dim] = portable::Element<T>::FromFloat(
        state.sum == 0 ? 0.0f : value / state.sum);
  }
  if (threadIdx.x == 0 && e.log_sum_exp != nullptr) {
    e.log_sum_exp[query * e.log_sum_exp_token_stride +
                  head * e.log_sum_exp_head_stride] = state.LogSumExp(factor);
  }
}

}  // namespace

cudaError_t MergeSplits(const PagedConfig& config, const AttendTable& table,
                        cudaStream_t stream) {
  if (table.merged_rows == 0) return cudaSuccess;
  const void* function = nullptr;
  switch (config.heads.data_type) {
    case DataType::kFloat32:
      function = reinterpret_cast<const void*>(MergeKernel<float>);
      break;
    case DataType::kFloat16:
      function = reinterpret_cast<const void*>(MergeKernel<__half>);
      break;
    case DataType::kBFloat16:
      function = reinterpret_cast<const void*>(MergeKernel<__nv_bfloat16>);
      break;
    case DataType::kFloat8E4M3:  // never of a paged config
      return cudaErrorInvalidValue;
  }
  HeadConfig heads = config.heads;
  AttendTable rows = table;
  void* arguments[] = {&heads, &rows};
  return LaunchOverlapping(function, table.merged_rows, kThreads, 0, stream,
                           arguments);
}

}  // namespace attention::cuda::decode
