// Streaming softmax attention for every GPU from sm_75 on: any type, head
// dimension, stride and mask; nothing of size M x N is ever written.
#ifndef ATTENTION_KERNELS_CUDA_PORTABLE_STREAMING_H_
#define ATTENTION_KERNELS_CUDA_PORTABLE_STREAMING_H_

#include <cuda_runtime_api.h>

#include <limits>

#include "kernels/attention_params.h"
#include "kernels/cuda/attention_cuda.h"

namespace attention::cuda::portable {

// What forms the products. kFastest takes tensor cores where the type (fp32:
// the precision too) allows and the device has the instruction. kFma does fp32
// and bf16 on any device.
enum class Arithmetic { kFastest, kFma };

// How the kernel is chosen. With the limit, a large device can stand in for
// one with less shared memory per thread block (bytes).
struct Choice {
  Arithmetic arithmetic = Arithmetic::kFastest;
  int shared_limit = std::numeric_limits<int>::max();
};

// As in attention_cuda.h.
ScratchBytes ScratchSize(const AttentionParams& params);
cudaError_t Launch(const AttentionParams& params, const Scratch& scratch,
                   cudaStream_t stream, const Choice& choice = {});

}  // namespace attention::cuda::portable

#endif  // ATTENTION_KERNELS_CUDA_PORTABLE_STREAMING_H_
