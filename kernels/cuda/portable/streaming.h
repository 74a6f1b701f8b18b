// Streaming softmax attention for every GPU from sm_75 on: any type, head
// dimension, stride and mask; nothing of size M x N is ever written.
#ifndef ATTENTION_KERNELS_CUDA_PORTABLE_STREAMING_H_
#define ATTENTION_KERNELS_CUDA_PORTABLE_STREAMING_H_

#include <cuda_runtime_api.h>

#include <limits>

#include "kernels/attention_params.h"
#include "kernels/cuda/attention_cuda.h"

namespace attention::cuda::portable {

// Bounds on what a kernel may ask of the device, beside the device's own: so a
// large device can stand in for a small one. Without tensor-core instructions
// for the type, plain fp32 multiply-adds take over.
struct DeviceLimits {
  int architecture = std::numeric_limits<int>::max();  // 75 for sm_75
  int shared_bytes = std::numeric_limits<int>::max();  // per thread block

  friend bool operator==(const DeviceLimits&, const DeviceLimits&) = default;
};

// As in attention_cuda.h.
ScratchBytes ScratchSize(const AttentionParams& params);
cudaError_t Launch(const AttentionParams& params, const Scratch& scratch,
                   cudaStream_t stream, const DeviceLimits& limits = {});

}  // namespace attention::cuda::portable

#endif  // ATTENTION_KERNELS_CUDA_PORTABLE_STREAMING_H_
