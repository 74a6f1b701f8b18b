// Launches of kernels that begin while the one before them on the stream ends.
#ifndef ATTENTION_KERNELS_CUDA_OVERLAPPING_LAUNCH_H_
#define ATTENTION_KERNELS_CUDA_OVERLAPPING_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace attention::cuda {

// Launches a kernel that may come onto the device while the one before it on
// the stream ends, and that calls WaitForPreviousKernel (overlapping_launch.cuh)
// before it touches memory.
cudaError_t LaunchOverlapping(const void* function, int64_t blocks, int threads,
                              int shared_bytes, cudaStream_t stream,
                              void** arguments);

}  // namespace attention::cuda

#endif  // ATTENTION_KERNELS_CUDA_OVERLAPPING_LAUNCH_H_
