#include "kernels/cuda/attention_cuda.h"

#include "kernels/cuda/portable/streaming.h"
#if defined(ATTENTION_HAVE_THREE_STEP)
#include "kernels/cuda/three_step/three_step.h"
#endif

namespace attention::cuda {

ScratchBytes ScratchSize(const AttentionParams& params) {
#if defined(ATTENTION_HAVE_THREE_STEP)
  if (params.config.algorithm == Algorithm::kThreeStep) {
    return three_step::ScratchSize(params);
  }
#endif
  return portable::ScratchSize(params);
}

cudaError_t Launch(const AttentionParams& params, const Scratch& scratch,
                   cudaStream_t stream) {
  if (params.sequence_count == 0 || params.config.query_head_count == 0) {
    return cudaSuccess;
  }
  if (params.config.algorithm == Algorithm::kThreeStep) {
#if defined(ATTENTION_HAVE_THREE_STEP)
    return three_step::Launch(params, scratch, stream);
#else
    return cudaErrorNotSupported;
#endif
  }
  return portable::Launch(params, scratch, stream);
}

}  // namespace attention::cuda
