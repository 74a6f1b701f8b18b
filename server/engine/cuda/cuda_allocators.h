// Memory of a GPU, and host memory that it can reach, for MemoryPool.
#ifndef ATTENTION_SERVER_ENGINE_CUDA_CUDA_ALLOCATORS_H_
#define ATTENTION_SERVER_ENGINE_CUDA_CUDA_ALLOCATORS_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "server/engine/cuda/cuda_runtime.h"
#include "server/memory/memory_pool.h"

namespace attention {

// Page-locked host memory, usable by every GPU: copies run at the full speed of
// the bus and beside computation. The runtime must outlive the allocator.
class PinnedAllocator : public Allocator {
 public:
  explicit PinnedAllocator(CudaRuntime* runtime) : runtime_(*runtime) {}

  absl::StatusOr<void*> Allocate(size_t bytes) override {
    return runtime_.AllocatePinned(bytes);
  }
  void Free(void* data, size_t /*bytes*/) override {
    runtime_.FreePinned(data);
  }

 private:
  CudaRuntime& runtime_;
};

// Memory of GPU `device`. Makes it the calling thread's current device. The
// runtime must outlive the allocator.
class DeviceAllocator : public Allocator {
 public:
  DeviceAllocator(CudaRuntime* runtime, int device)
      : runtime_(*runtime), device_(device) {}

  absl::StatusOr<void*> Allocate(size_t bytes) override {
    if (absl::Status status = runtime_.SetDevice(device_); !status.ok()) {
      return status;
    }
    return runtime_.AllocateDevice(bytes);
  }
  void Free(void* data, size_t /*bytes*/) override {
    if (runtime_.SetDevice(device_).ok()) runtime_.FreeDevice(data);
  }

 private:
  CudaRuntime& runtime_;
  const int device_;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_CUDA_CUDA_ALLOCATORS_H_
