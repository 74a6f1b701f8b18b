// Streaming attention on the tensor cores of compute capability 9.0, with
// tensor copies and warpgroup products.
#ifndef ATTENTION_KERNELS_CUDA_SM90_PREFILL_H_
#define ATTENTION_KERNELS_CUDA_SM90_PREFILL_H_

#include <cuda_runtime_api.h>

#include "kernels/attention_params.h"
#include "kernels/cuda/attention_cuda.h"

namespace attention::cuda::sm90 {

// Whether these kernels can compute the sequence; depends on nothing but the
// configuration and the sequence, so that mates in a batch change nothing.
// Others are left to the portable kernels: fp32 with more than 128 dimensions,
// tensors that tensor copies cannot address, scales that are not positive, scales
// of heads except of fp8 tensors, sequences without keys; and all in a program
// that is not compiled for sm_90a.
bool CanCompute(const HeadConfig& config, const Sequence& sequence);

// Sets *is to whether the current device has compute capability 9.0.
cudaError_t IsSupported(bool* is);

// As in attention_cuda.h, for sequences that CanCompute.
ScratchBytes ScratchSize(const AttentionParams& params);
cudaError_t Launch(const AttentionParams& params, const Scratch& scratch,
                   cudaStream_t stream);

}  // namespace attention::cuda::sm90

#endif  // ATTENTION_KERNELS_CUDA_SM90_PREFILL_H_
