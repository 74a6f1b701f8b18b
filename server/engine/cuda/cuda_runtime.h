// The part of the CUDA runtime that the engine uses, as an interface, so that
// its handling of errors and memory is tested on machines without a GPU.
//
// Free of CUDA's headers. Every error is a Status: RESOURCE_EXHAUSTED for a
// lack of memory, INTERNAL otherwise, naming the call and CUDA's error.
#ifndef ATTENTION_SERVER_ENGINE_CUDA_CUDA_RUNTIME_H_
#define ATTENTION_SERVER_ENGINE_CUDA_CUDA_RUNTIME_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kernels/attention_params.h"
#include "kernels/paged_params.h"

namespace attention {

// Thread-safe, as CUDA is: calls concern the calling thread's current device.
class CudaRuntime {
 public:
  using Stream = void*;
  using Event = void*;

  static constexpr size_t kHandleBytes = 64;
  static constexpr size_t kUuidBytes = 16;

  struct Properties {
    std::string name;                // "NVIDIA H200"
    std::string uuid;                // kUuidBytes
    std::string compute_capability;  // "9.0"
    size_t memory_bytes = 0;
    int multiprocessor_count = 0;
  };

  // As cuda::ScratchBytes and cuda::Scratch; see kernels/cuda/attention_cuda.h.
  struct ScratchBytes {
    size_t host_bytes = 0;
    size_t device_bytes = 0;
  };
  struct Scratch {
    void* host = nullptr;
    void* device = nullptr;
  };

  // Memory of another process.
  struct SharedMemory {
    void* data = nullptr;
    size_t bytes = 0;  // from `data` to the end of the allocation
    int device = 0;
  };

  virtual ~CudaRuntime() = default;

  // FAILED_PRECONDITION without a driver or a GPU.
  virtual absl::StatusOr<int> DeviceCount() = 0;
  virtual absl::StatusOr<Properties> GetProperties(int device) = 0;
  // Makes `device` the calling thread's current one.
  virtual absl::Status SetDevice(int device) = 0;

  // Aligned to 256 bytes. Pinned memory is usable by all devices. Freeing never
  // fails in a way that the caller could act on.
  virtual absl::StatusOr<void*> AllocateDevice(size_t bytes) = 0;
  virtual void FreeDevice(void* data) = 0;
  virtual absl::StatusOr<void*> AllocatePinned(size_t bytes) = 0;
  virtual void FreePinned(void* data) = 0;

  // Makes memory that the process has mapped, whole pages, what AllocatePinned
  // returns, and undoes that before it is unmapped. No page is touched by a
  // processor. Any device may be the current one.
  virtual absl::Status PinMemory(void* data, size_t bytes) = 0;
  virtual void UnpinMemory(void* data) = 0;

  // Maps what another process got `handle`, of kHandleBytes, for. A handle must
  // not be opened twice at a time. INVALID_ARGUMENT when it is none,
  // FAILED_PRECONDITION when the memory cannot be mapped.
  virtual absl::StatusOr<SharedMemory> OpenShared(absl::string_view handle) = 0;
  virtual void CloseShared(void* data) = 0;

  // A stream that does not wait for others.
  virtual absl::StatusOr<Stream> CreateStream() = 0;
  virtual void DestroyStream(Stream stream) = 0;
  virtual absl::StatusOr<Event> CreateEvent() = 0;
  virtual void DestroyEvent(Event event) = 0;

  // Enqueue and return; host memory is pinned.
  virtual absl::Status RecordEvent(Event event, Stream stream) = 0;
  // What is enqueued on `stream` from now on happens after what came before the
  // last RecordEvent of `event`, on any stream of the device.
  virtual absl::Status WaitEvent(Stream stream, Event event) = 0;
  virtual absl::Status CopyToDevice(void* device, const void* host,
                                    size_t bytes, Stream stream) = 0;
  virtual absl::Status CopyToHost(void* host, const void* device, size_t bytes,
                                  Stream stream) = 0;
  // Returns when it is done; any host memory.
  virtual absl::Status WriteDevice(void* device, const void* host,
                                   size_t bytes) = 0;
  virtual absl::Status ClearDevice(void* device, size_t bytes,
                                   Stream stream) = 0;
  // Sets `count` floats.
  virtual absl::Status FillDevice(float* device, float value, size_t count,
                                  Stream stream) = 0;

  virtual ScratchBytes ScratchSize(const AttentionParams& params) = 0;
  virtual absl::Status Launch(const AttentionParams& params,
                              const Scratch& scratch, Stream stream) = 0;

  // The same of paged attention; see kernels/cuda/decode/decode.h. The size
  // depends on lengths and options only: page tables may be null.
  virtual ScratchBytes PagedScratchSize(const PagedParams& params) = 0;
  virtual absl::Status LaunchPaged(const PagedParams& params,
                                   const Scratch& scratch, Stream stream) = 0;

  // Waits for everything enqueued on `stream`: polls for a moment, then sleeps.
  virtual absl::Status Synchronize(Stream stream) = 0;
  // Between two events that have happened.
  virtual absl::StatusOr<absl::Duration> ElapsedTime(Event from, Event to) = 0;

  // OK unless the device has failed for good: clears the last error and sees
  // whether there is another one. Does not wait.
  virtual absl::Status CheckDevice(Stream stream) = 0;
};

// The real one; lives for ever. FAILED_PRECONDITION in a build without CUDA.
absl::StatusOr<CudaRuntime*> SystemCudaRuntime();

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_CUDA_CUDA_RUNTIME_H_
