// Counters from which the blocks of a launch take their tiles.
#ifndef ATTENTION_KERNELS_CUDA_SM90_COUNTERS_H_
#define ATTENTION_KERNELS_CUDA_SM90_COUNTERS_H_

#include <cuda_runtime_api.h>

namespace attention::cuda::sm90 {

// Sets *counter to the device address of a zero that the next launch may count
// in; it must leave a zero behind. Launches take turns with so many that no two
// under way at the same time share one.
cudaError_t NextCounter(unsigned** counter);

}  // namespace attention::cuda::sm90

#endif  // ATTENTION_KERNELS_CUDA_SM90_COUNTERS_H_
