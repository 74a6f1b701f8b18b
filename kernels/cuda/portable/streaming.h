// Streaming softmax attention for every GPU from sm_75 on: any type, head
// dimension, stride and mask; nothing of size M x N is ever written.
#ifndef ATTENTION_KERNELS_CUDA_PORTABLE_STREAMING_H_
#define ATTENTION_KERNELS_CUDA_PORTABLE_STREAMING_H_

#include <cuda_runtime_api.h>

#include "kernels/attention_params.h"
#include "kernels/cuda/attention_cuda.h"
#include "kernels/cuda/kernel_choice.h"

namespace attention::cuda::portable {

// As in attention_cuda.h; fp8 takes scratch memory that grows with its tensors
// (float8.h). Where the device, within `limits`, has no tensor-core
// instructions for the type, plain fp32 multiply-adds take over.
ScratchBytes ScratchSize(const AttentionParams& params);
cudaError_t Launch(const AttentionParams& params, const Scratch& scratch,
                   cudaStream_t stream, const DeviceLimits& limits = {});

}  // namespace attention::cuda::portable

#endif  // ATTENTION_KERNELS_CUDA_PORTABLE_STREAMING_H_
