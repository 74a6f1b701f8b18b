// Lists that the host makes for a launch, on their way to the device.
#ifndef ATTENTION_KERNELS_CUDA_UPLOAD_H_
#define ATTENTION_KERNELS_CUDA_UPLOAD_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace attention::cuda {

// Part of device memory that an upload sets to 0.
struct Cleared {
  void* data = nullptr;
  int64_t bytes = 0;
};

// Enqueues a copy of `bytes` from pinned memory to `device`; all of it is in
// units of 16 bytes. By a kernel, which takes less time than the copy engine
// and does not queue behind the copies of other streams. It may run while what
// is ahead on the stream does, none of which may use this memory.
cudaError_t Upload(const void* host, void* device, int64_t bytes,
                   const Cleared& cleared, cudaStream_t stream);
inline cudaError_t Upload(const void* host, void* device, int64_t bytes,
                          cudaStream_t stream) {
  return Upload(host, device, bytes, {}, stream);
}

}  // namespace attention::cuda

#endif  // ATTENTION_KERNELS_CUDA_UPLOAD_H_
