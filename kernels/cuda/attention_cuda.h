// Attention on a CUDA device: picks the implementation and launches it.
//
// Free of Abseil and of C++ exceptions so that the kernels build with nothing
// but a CUDA toolkit. The caller has validated the parameters
// (kernels/validation.h); tensor pointers are device pointers on the current
// device, and `params.sequences` is host memory.
//
//   auto size = cuda::ScratchSize(params);
//   ... allocate size.host_bytes pinned and size.device_bytes device memory ...
//   cudaError_t error = cuda::Launch(params, scratch, stream);
#ifndef ATTENTION_KERNELS_CUDA_ATTENTION_CUDA_H_
#define ATTENTION_KERNELS_CUDA_ATTENTION_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/attention_params.h"

namespace attention::cuda {

// Memory that a launch needs besides the tensors: the sequence descriptors, for
// kThreeStep the scores of sequences without a weights pointer, and for
// kFloat8E4M3 the tensors as fp16 where no kernel reads them as they are.
struct ScratchBytes {
  size_t host_bytes = 0;  // pinned
  size_t device_bytes = 0;
};

// `bytes` up to where another part of scratch memory may begin.
constexpr size_t AlignScratch(size_t bytes) {
  constexpr size_t kAlignment = 256;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Both aligned to 256 bytes. Owned by the caller, who must leave them alone
// until the work enqueued by Launch has finished.
struct Scratch {
  void* host = nullptr;
  void* device = nullptr;
};

// For the current device.
ScratchBytes ScratchSize(const AttentionParams& params);

// Enqueues the computation on `stream` of the current device and returns
// without waiting. Writes every element of every sequence's output (and
// log_sum_exp and weights where not null); touches nothing else. Returns the
// first CUDA error. Nothing is launched when there is nothing to compute.
cudaError_t Launch(const AttentionParams& params, const Scratch& scratch,
                   cudaStream_t stream);

}  // namespace attention::cuda

#endif  // ATTENTION_KERNELS_CUDA_ATTENTION_CUDA_H_
