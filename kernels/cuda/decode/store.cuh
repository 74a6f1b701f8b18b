// What a block of the attend kernels leaves behind.
#ifndef ATTENTION_KERNELS_CUDA_DECODE_STORE_CUH_
#define ATTENTION_KERNELS_CUDA_DECODE_STORE_CUH_

#include "kernels/cuda/decode/block_problem.cuh"

namespace attention::cuda::decode {

// Writes one element of a row's result: where nothing is to be merged the
// output, otherwise a partial result.
template <typename T>
__device__ void StoreColumn(const BlockProblem& problem, int row, int column,
                            float o, float sum) {
  if (column >= problem.head_dim_v) return;
  o *= problem.value_scale;
  if (problem.entry.splits > 1) {
    problem.Partial(row)[column] = o;
    return;
  }
  using Bits = typename portable::Element<T>::Bits;
  problem.template OutputRow<Bits>(
      row)[column * problem.entry.output_strides.dim] =
      portable::Element<T>::FromFloat(sum == 0 ? 0.0f : o / sum);
}

inline __device__ void StoreState(const BlockProblem& problem, int row,
                                  const portable::RowState& state) {
  if (problem.entry.splits > 1) {
    float* partial = problem.Partial(row) + problem.head_dim_v;
    partial[0] = state.max;
    partial[1] = state.sum;
  } else {
    problem.StoreLogSumExp(row, state.LogSumExp(problem.scale.factor));
  }
}

}  // namespace attention::cuda::decode

#endif  // ATTENTION_KERNELS_CUDA_DECODE_STORE_CUH_
