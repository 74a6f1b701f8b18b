#include "kernels/cuda/sm90/merge.h"

#include "kernels/cuda/overlapping_launch.h"
#include "kernels/cuda/portable/element.cuh"
#include "kernels/cuda/portable/problem.cuh"
#include "kernels/cuda/sm90/async.cuh"

namespace attention::cuda::sm90 {
namespace {

constexpr int kWarps = 4;

// A warp per row:  output = sum w_i output_i / sum w_i,  w_i = exp2(l_i - max l)
template <typename T>
__global__ void __launch_bounds__(kWarps * 32)
    MergeKernel(const __grid_constant__ WorkList list) {
#if __CUDA_ARCH__ >= 900
  WaitForPreviousKernel();
  using Element = portable::Element<T>;
  const int lane = threadIdx.x % 32;
  const int32_t merge = blockIdx.x * kWarps + threadIdx.x / 32;
  if (merge >= list.merge_count) return;
  const PrefillSequence& s = list.FindMerged(merge);
  const int32_t head = (merge - s.first_merge) / s.rows;
  const int32_t row = (merge - s.first_merge) % s.rows;

  // Each lane has the weight of a chunk.
  static_assert(kMaxChunks <= 32);
  const float own =
      lane < s.chunk_count
          ? s.partial_log_sum_exp[s.PartialIndex(lane, head, row)]
          : -INFINITY;
  float max = own;
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, distance));
  }
  const float base = max == -INFINITY ? 0.0f : max;
  const float own_weight = exp2f(own - base);

  constexpr int kPairs = kMaxHeadDim / 64;
  float2 sums[kPairs] = {};
  float weights = 0;
#pragma unroll 4
  for (int32_t chunk = 0; chunk < s.chunk_count; ++chunk) {
    const float weight = __shfl_sync(0xffffffffu, own_weight, chunk);
    const float* const output =
        s.partial_output + s.PartialIndex(chunk, head, row) * list.value_dims;
    weights += weight;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int column = 64 * i + 2 * lane;
      if (column >= list.value_dims) continue;
      const float2 v = *reinterpret_cast<const float2*>(output + column);
      sums[i].x = fmaf(weight, v.x, sums[i].x);
      sums[i].y = fmaf(weight, v.y, sums[i].y);
    }
  }

  const int64_t query = row >> list.group_shift;
  const int64_t output_head = (static_cast<int64_t>(head) << list.group_shift) +
                              (row & ((1 << list.group_shift) - 1));
  const float inverse = weights == 0 ? 0.0f : 1.0f / weights;
  auto* const output = static_cast<typename Element::Bits*>(s.output) +
                       query * s.output_token_stride +
                       output_head * s.output_head_stride;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int column = 64 * i + 2 * lane;
    if (column >= list.value_dims) continue;
    *reinterpret_cast<uint32_t*>(output + column) =
        Element::Pack(sums[i].x * inverse, sums[i].y * inverse);
  }
  if (lane == 0 && s.log_sum_exp != nullptr) {
    s.log_sum_exp[query * s.log_sum_exp_token_stride +
                  output_head * s.log_sum_exp_head_stride] =
        weights == 0 ? -INFINITY : (base + log2f(weights)) * portable::kLn2;
  }
#endif
}

}  // namespace

cudaError_t LaunchMerge(DataType data_type, const WorkList& list,
                        cudaStream_t stream) {
  const bool is_half = data_type == DataType::kFloat16;
  const auto function =
      is_half ? MergeKernel<__half> : MergeKernel<__nv_bfloat16>;
  void* arguments[] = {const_cast<WorkList*>(&list)};
  return LaunchOverlapping(reinterpret_cast<const void*>(function),
                           (list.merge_count + kWarps - 1) / kWarps,
                           kWarps * 32, 0, stream, arguments);
}

}  // namespace attention::cuda::sm90
