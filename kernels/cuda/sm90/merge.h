// Merges the partial results of sequences that were cut into chunks of keys.
#ifndef ATTENTION_KERNELS_CUDA_SM90_MERGE_H_
#define ATTENTION_KERNELS_CUDA_SM90_MERGE_H_

#include <cuda_runtime_api.h>

#include "kernels/attention_params.h"
#include "kernels/cuda/sm90/work_list.h"

namespace attention::cuda::sm90 {

// Enqueues the merge behind the launch of the same list. `data_type` is one of
// 16 bits. Chunks are taken in order, so that the result is always the same.
cudaError_t LaunchMerge(DataType data_type, const WorkList& list,
                        cudaStream_t stream);

}  // namespace attention::cuda::sm90

#endif  // ATTENTION_KERNELS_CUDA_SM90_MERGE_H_
