// What only CUDA's driver interface can do. Found at run time, so that programs
// start on machines without a driver.
#ifndef ATTENTION_SERVER_ENGINE_CUDA_CUDA_DRIVER_H_
#define ATTENTION_SERVER_ENGINE_CUDA_CUDA_DRIVER_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace attention {

// Sets `count` words of device memory, in the order of the stream.
cudaError_t FillWords(void* device, uint32_t value, size_t count,
                      cudaStream_t stream);

// How many bytes of its allocation lie at and behind `device`.
cudaError_t BytesToEnd(const void* device, size_t* bytes);

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_CUDA_CUDA_DRIVER_H_
