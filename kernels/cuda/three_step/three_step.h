// The materialising algorithm: scores, row softmax, output, each a kernel.
//
// It exists to return the attention weights, and as the baseline that the
// streaming kernels are measured against.
//
//   S = scale * Q K^T     tiles of 128 x 128, K read as it lies
//   P = softmax(S)        in place, a warp per row, masked
//   O = P V               tiles of 128 x 64
//
// Scores and the weights that enter O are fp32 for every data type; returned
// weights are rounded once, on output. For fp32 they are computed where they
// are returned; otherwise scratch memory holds the scores, and what does not
// fit kScoresBudgetBytes is worked through in turns that reuse it.
#ifndef ATTENTION_KERNELS_CUDA_THREE_STEP_THREE_STEP_H_
#define ATTENTION_KERNELS_CUDA_THREE_STEP_THREE_STEP_H_

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/attention_params.h"
#include "kernels/cuda/attention_cuda.h"

namespace attention::cuda::three_step {

// Exceeded only where 128 rows of scores take more.
inline constexpr size_t kScoresBudgetBytes = size_t{512} << 20;

// As cuda::ScratchSize and cuda::Launch, whose contracts hold here.
// Precision::kTf32 computes full fp32 products.
ScratchBytes ScratchSize(const AttentionParams& params);
cudaError_t Launch(const AttentionParams& params, const Scratch& scratch,
                   cudaStream_t stream);

}  // namespace attention::cuda::three_step

#endif  // ATTENTION_KERNELS_CUDA_THREE_STEP_THREE_STEP_H_
