// Attention over paged K/V on a CUDA device; see kernels/paged_params.h.
//
// As attention_cuda.h: parameters have been validated, tensors and pages are
// device pointers on the current device (PageCopy::from may also be pinned host
// memory), everything that params refers to in host memory may go once Launch
// has returned.
#ifndef ATTENTION_KERNELS_CUDA_DECODE_DECODE_H_
#define ATTENTION_KERNELS_CUDA_DECODE_DECODE_H_

#include <cuda_runtime_api.h>

#include "kernels/cuda/attention_cuda.h"
#include "kernels/paged_params.h"

namespace attention::cuda {

// For page tables, descriptors, and partial results of sequences that are split
// along their keys. Reads counts and lengths of `params` only.
ScratchBytes PagedScratchSize(const PagedParams& params);

// Enqueues the page copies, then the appends, then the attention. What a
// sequence gets does not depend, to the bit, on the others of the launch.
// Returns the first CUDA error; nothing is launched when there is nothing to
// do.
cudaError_t LaunchPaged(const PagedParams& params, const Scratch& scratch,
                        cudaStream_t stream);

}  // namespace attention::cuda

#endif  // ATTENTION_KERNELS_CUDA_DECODE_DECODE_H_
