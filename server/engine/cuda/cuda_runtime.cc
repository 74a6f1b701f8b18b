#include "server/engine/cuda/cuda_runtime.h"

#include <cuda_runtime_api.h>

#include <bit>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/attention_cuda.h"
#include "kernels/cuda/decode/decode.h"
#include "server/engine/cuda/cuda_driver.h"

namespace attention {
namespace {

absl::Status ToStatus(cudaError_t error, absl::string_view call) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message =
      absl::StrCat(call, ": ", cudaGetErrorName(error), " (",
                   cudaGetErrorString(error), ")");
  // Errors that are not sticky would otherwise surface in a later call's
  // cudaGetLastError.
  cudaGetLastError();
  if (error == cudaErrorMemoryAllocation) {
    return absl::ResourceExhaustedError(message);
  }
  return absl::InternalError(message);
}

// Why a handle of a caller does not open.
absl::Status HandleError(cudaError_t error) {
  const absl::Status status = ToStatus(error, "cudaIpcOpenMemHandle");
  switch (error) {
    case cudaErrorMemoryAllocation:
      return status;
    case cudaErrorMapBufferObjectFailed:
    case cudaErrorOperatingSystem:
    case cudaErrorPeerAccessUnsupported:
    case cudaErrorTooManyPeers:
    case cudaErrorNotSupported:
      return absl::FailedPreconditionError(status.message());
    default:
      return absl::InvalidArgumentError(status.message());
  }
}

// How long a wait polls before it sleeps. Being woken takes tens of
// microseconds, on virtual machines hundreds, which batches that are over sooner
// need not pay. Other threads go first after the shorter time: the processor may
// be needed where payloads are received and gathered.
constexpr std::chrono::microseconds kEagerPollingTime{50};
constexpr std::chrono::microseconds kPollingTime{3000};

struct StreamState {
  cudaStream_t stream = nullptr;
  cudaEvent_t finished = nullptr;  // waiting for it sleeps
};

cudaStream_t ToCuda(CudaRuntime::Stream stream) {
  return static_cast<StreamState*>(stream)->stream;
}

cudaEvent_t EventToCuda(CudaRuntime::Event event) {
  return static_cast<cudaEvent_t>(event);
}

CudaRuntime::ScratchBytes FromCuda(const cuda::ScratchBytes& bytes) {
  return {.host_bytes = bytes.host_bytes, .device_bytes = bytes.device_bytes};
}

class SystemRuntime final : public CudaRuntime {
 public:
  absl::StatusOr<int> DeviceCount() override {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) {
      return absl::FailedPreconditionError(
          ToStatus(error, "cudaGetDeviceCount").message());
    }
    if (count == 0) return absl::FailedPreconditionError("no CUDA device");
    return count;
  }

  absl::StatusOr<Properties> GetProperties(int device) override {
    cudaDeviceProp properties;
    const cudaError_t error = cudaGetDeviceProperties(&properties, device);
    if (error != cudaSuccess) return ToStatus(error, "cudaGetDeviceProperties");
    return Properties{.name = properties.name,
                      .uuid = std::string(properties.uuid.bytes, kUuidBytes),
                      .compute_capability =
                          absl::StrCat(properties.major, ".", properties.minor),
                      .memory_bytes = properties.totalGlobalMem,
                      .multiprocessor_count = properties.multiProcessorCount};
  }

  absl::Status SetDevice(int device) override {
    return ToStatus(cudaSetDevice(device), "cudaSetDevice");
  }

  absl::StatusOr<void*> AllocateDevice(size_t bytes) override {
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, bytes);
    if (error != cudaSuccess) return ToStatus(error, "cudaMalloc");
    return data;
  }
  void FreeDevice(void* data) override { cudaFree(data); }

  absl::StatusOr<void*> AllocatePinned(size_t bytes) override {
    void* data = nullptr;
    const cudaError_t error =
        cudaHostAlloc(&data, bytes, cudaHostAllocPortable);
    if (error != cudaSuccess) return ToStatus(error, "cudaHostAlloc");
    return data;
  }
  void FreePinned(void* data) override { cudaFreeHost(data); }

  absl::Status PinMemory(void* data, size_t bytes) override {
    return ToStatus(cudaHostRegister(data, bytes, cudaHostRegisterPortable),
                    "cudaHostRegister");
  }
  void UnpinMemory(void* data) override {
    if (cudaHostUnregister(data) != cudaSuccess) cudaGetLastError();
  }

  absl::StatusOr<SharedMemory> OpenShared(absl::string_view handle) override {
    cudaIpcMemHandle_t cuda_handle;
    static_assert(sizeof(cuda_handle) == kHandleBytes);
    std::memcpy(&cuda_handle, handle.data(), kHandleBytes);
    SharedMemory memory;
    cudaError_t error = cudaIpcOpenMemHandle(&memory.data, cuda_handle,
                                             cudaIpcMemLazyEnablePeerAccess);
    if (error != cudaSuccess) return HandleError(error);
    cudaPointerAttributes attributes;
    error = cudaPointerGetAttributes(&attributes, memory.data);
    if (error == cudaSuccess) {
      memory.device = attributes.device;
      error = BytesToEnd(memory.data, &memory.bytes);
    }
    if (error != cudaSuccess) {
      cudaIpcCloseMemHandle(memory.data);
      return ToStatus(error, "examining shared memory");
    }
    return memory;
  }
  void CloseShared(void* data) override {
    if (cudaIpcCloseMemHandle(data) != cudaSuccess) cudaGetLastError();
  }

  absl::StatusOr<Stream> CreateStream() override {
    auto state = std::make_unique<StreamState>();
    cudaError_t error =
        cudaStreamCreateWithFlags(&state->stream, cudaStreamNonBlocking);
    if (error != cudaSuccess) return ToStatus(error, "cudaStreamCreate");
    error = cudaEventCreateWithFlags(
        &state->finished, cudaEventBlockingSync | cudaEventDisableTiming);
    if (error != cudaSuccess) {
      cudaStreamDestroy(state->stream);
      return ToStatus(error, "cudaEventCreate");
    }
    return state.release();
  }
  void DestroyStream(Stream stream) override {
    const std::unique_ptr<StreamState> state(static_cast<StreamState*>(stream));
    cudaEventDestroy(state->finished);
    cudaStreamDestroy(state->stream);
  }

  absl::StatusOr<Event> CreateEvent() override {
    cudaEvent_t event = nullptr;
    const cudaError_t error = cudaEventCreate(&event);
    if (error != cudaSuccess) return ToStatus(error, "cudaEventCreate");
    return event;
  }
  void DestroyEvent(Event event) override {
    cudaEventDestroy(EventToCuda(event));
  }

  absl::Status RecordEvent(Event event, Stream stream) override {
    return ToStatus(cudaEventRecord(EventToCuda(event), ToCuda(stream)),
                    "cudaEventRecord");
  }
  absl::Status WaitEvent(Stream stream, Event event) override {
    return ToStatus(cudaStreamWaitEvent(ToCuda(stream), EventToCuda(event)),
                    "cudaStreamWaitEvent");
  }
  absl::Status CopyToDevice(void* device, const void* host, size_t bytes,
                            Stream stream) override {
    return ToStatus(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice,
                                    ToCuda(stream)),
                    "cudaMemcpyAsync to the device");
  }
  absl::Status CopyToHost(void* host, const void* device, size_t bytes,
                          Stream stream) override {
    return ToStatus(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost,
                                    ToCuda(stream)),
                    "cudaMemcpyAsync to the host");
  }
  absl::Status WriteDevice(void* device, const void* host,
                           size_t bytes) override {
    cudaError_t error = cudaMemcpyAsync(
        device, host, bytes, cudaMemcpyHostToDevice, cudaStreamPerThread);
    if (error == cudaSuccess) {
      error = cudaStreamSynchronize(cudaStreamPerThread);
    }
    return ToStatus(error, "cudaMemcpyAsync to the device");
  }
  absl::Status ClearDevice(void* device, size_t bytes, Stream stream) override {
    return ToStatus(cudaMemsetAsync(device, 0, bytes, ToCuda(stream)),
                    "cudaMemsetAsync");
  }
  absl::Status FillDevice(float* device, float value, size_t count,
                          Stream stream) override {
    return ToStatus(FillWords(device, std::bit_cast<uint32_t>(value), count,
                              ToCuda(stream)),
                    "cuMemsetD32Async");
  }

  ScratchBytes ScratchSize(const AttentionParams& params) override {
    return FromCuda(cuda::ScratchSize(params));
  }
  absl::Status Launch(const AttentionParams& params, const Scratch& scratch,
                      Stream stream) override {
    return ToStatus(
        cuda::Launch(params, {.host = scratch.host, .device = scratch.device},
                     ToCuda(stream)),
        "attention launch");
  }
  ScratchBytes PagedScratchSize(const PagedParams& params) override {
    return FromCuda(cuda::PagedScratchSize(params));
  }
  absl::Status LaunchPaged(const PagedParams& params, const Scratch& scratch,
                           Stream stream) override {
    return ToStatus(cuda::LaunchPaged(
                        params, {.host = scratch.host, .device = scratch.device},
                        ToCuda(stream)),
                    "paged attention launch");
  }

  absl::Status Synchronize(Stream stream) override {
    const auto start = std::chrono::steady_clock::now();
    std::chrono::steady_clock::duration polled{};
    cudaError_t error;
    while ((error = cudaStreamQuery(ToCuda(stream))) == cudaErrorNotReady &&
           polled < kPollingTime) {
      if (polled > kEagerPollingTime) std::this_thread::yield();
      polled = std::chrono::steady_clock::now() - start;
    }
    if (error != cudaErrorNotReady) return ToStatus(error, "cudaStreamQuery");
    const cudaEvent_t finished = static_cast<StreamState*>(stream)->finished;
    error = cudaEventRecord(finished, ToCuda(stream));
    // Waits on the stream itself where the event cannot tell.
    error = error == cudaSuccess ? cudaEventSynchronize(finished)
                                 : cudaStreamSynchronize(ToCuda(stream));
    return ToStatus(error, "waiting for the stream");
  }

  absl::StatusOr<absl::Duration> ElapsedTime(Event from, Event to) override {
    float milliseconds = 0;
    const cudaError_t error =
        cudaEventElapsedTime(&milliseconds, EventToCuda(from), EventToCuda(to));
    if (error != cudaSuccess) return ToStatus(error, "cudaEventElapsedTime");
    return absl::Milliseconds(milliseconds);
  }

  absl::Status CheckDevice(Stream stream) override {
    cudaGetLastError();
    const cudaError_t error = cudaStreamQuery(ToCuda(stream));
    if (error == cudaErrorNotReady) {
      cudaGetLastError();
      return absl::OkStatus();
    }
    return ToStatus(error, "cudaStreamQuery");
  }
};

}  // namespace

absl::StatusOr<CudaRuntime*> SystemCudaRuntime() {
  static SystemRuntime* const runtime = new SystemRuntime;
  return runtime;
}

}  // namespace attention
