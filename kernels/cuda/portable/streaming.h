// Streaming softmax attention for every GPU from sm_75 on: any type, head
// dimension, stride and mask; nothing of size M x N is ever written.
#ifndef ATTENTION_KERNELS_CUDA_PORTABLE_STREAMING_H_
#define ATTENTION_KERNELS_CUDA_PORTABLE_STREAMING_H_

#include <cuda_runtime_api.h>

#include "kernels/attention_params.h"
#include "kernels/cuda/attention_cuda.h"

namespace attention::cuda::portable {

// What forms the products. kFastest takes tensor cores where the type (fp32:
// the precision too) allows and the device has the instruction. kFma does fp32
// and bf16 on any device.
enum class Arithmetic { kFastest, kFma };

// As in attention_cuda.h.
ScratchBytes ScratchSize(const AttentionParams& params);
cudaError_t Launch(const AttentionParams& params, const Scratch& scratch,
                   cudaStream_t stream,
                   Arithmetic arithmetic = Arithmetic::kFastest);

}  // namespace attention::cuda::portable

#endif  // ATTENTION_KERNELS_CUDA_PORTABLE_STREAMING_H_
