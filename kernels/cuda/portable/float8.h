// Streaming attention of fp8 e4m3 tensors for every GPU from sm_75 on, by the
// kernels for fp16, which holds each e4m3 number exactly.
//
// Queries, keys and values are converted into scratch memory; the kernels take
// the scales of queries and keys into that of the scores; the outputs, fp16 and
// without the scales of values, are multiplied by these and rounded to bf16 at
// the end.
//
// Some kernels take no scales of heads: for them those of queries and keys,
// where all heads have the same, become part of the sequence's scale.
#ifndef ATTENTION_KERNELS_CUDA_PORTABLE_FLOAT8_H_
#define ATTENTION_KERNELS_CUDA_PORTABLE_FLOAT8_H_

#include <cuda_runtime_api.h>

#include <functional>

#include "kernels/attention_params.h"
#include "kernels/cuda/attention_cuda.h"

namespace attention::cuda::portable {

// Kernels for fp16.
struct HalfKernels {
  std::function<ScratchBytes(const AttentionParams& params)> scratch_size;
  std::function<cudaError_t(const AttentionParams& params,
                            const Scratch& scratch, cudaStream_t stream)>
      launch;
  // Whether scales that all heads share are taken into the sequence's.
  bool folds_scales = false;
};

// As ScratchSize and Launch of streaming.h, for DataType::kFloat8E4M3. Scratch
// memory grows with the tensors: twice the bytes of the inputs, and the bytes
// of the outputs.
ScratchBytes Float8ScratchSize(const AttentionParams& params,
                               const HalfKernels& kernels);
cudaError_t LaunchFloat8(const AttentionParams& params, const Scratch& scratch,
                         cudaStream_t stream, const HalfKernels& kernels);

}  // namespace attention::cuda::portable

#endif  // ATTENTION_KERNELS_CUDA_PORTABLE_FLOAT8_H_
