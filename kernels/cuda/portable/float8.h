// Streaming attention of fp8 e4m3 tensors for every GPU from sm_75 on, by the
// kernels for fp16, which holds each e4m3 number exactly.
//
// Queries, keys and values are converted into scratch memory; the kernels take
// the scales of queries and keys into that of the scores; the outputs, fp16 and
// without the scales of values, are multiplied by these and rounded to bf16 at
// the end.
#ifndef ATTENTION_KERNELS_CUDA_PORTABLE_FLOAT8_H_
#define ATTENTION_KERNELS_CUDA_PORTABLE_FLOAT8_H_

#include <cuda_runtime_api.h>

#include "kernels/attention_params.h"
#include "kernels/cuda/attention_cuda.h"
#include "kernels/cuda/kernel_choice.h"

namespace attention::cuda::portable {

// As ScratchSize and Launch of streaming.h, for DataType::kFloat8E4M3. Scratch
// memory grows with the tensors: twice the bytes of the inputs, and the bytes of
// the outputs.
ScratchBytes Float8ScratchSize(const AttentionParams& params);
cudaError_t LaunchFloat8(const AttentionParams& params, const Scratch& scratch,
                         cudaStream_t stream, const DeviceLimits& limits);

}  // namespace attention::cuda::portable

#endif  // ATTENTION_KERNELS_CUDA_PORTABLE_FLOAT8_H_
