#include "kernels/cuda/attention_cuda.h"

#include "kernels/cuda/portable/streaming.h"
#include "kernels/cuda/three_step/three_step.h"

namespace attention::cuda {

ScratchBytes ScratchSize(const AttentionParams& params) {
  if (params.config.algorithm == Algorithm::kThreeStep) {
    return three_step::ScratchSize(params);
  }
  return portable::ScratchSize(params);
}

cudaError_t Launch(const AttentionParams& params, const Scratch& scratch,
                   cudaStream_t stream) {
  if (params.sequence_count == 0 || params.config.query_head_count == 0) {
    return cudaSuccess;
  }
  if (params.config.algorithm == Algorithm::kThreeStep) {
    return three_step::Launch(params, scratch, stream);
  }
  return portable::Launch(params, scratch, stream);
}

}  // namespace attention::cuda
