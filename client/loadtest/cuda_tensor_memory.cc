#include <cuda_runtime_api.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/loadtest/tensor_memory.h"

namespace attention::loadtest {
namespace {

constexpr absl::Duration kLease = absl::Hours(1);  // longer than any run

absl::Status ToStatus(cudaError_t error, absl::string_view call) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(call, ": ", cudaGetErrorString(error)));
}

class CudaTensorMemory : public TensorMemory {
 public:
  explicit CudaTensorMemory(int device) : device_(device) {}

  ~CudaTensorMemory() override {
    region_.reset();  // the server lets go first
    if (data_ != nullptr && cudaSetDevice(device_) == cudaSuccess) {
      cudaFree(data_);
    }
  }

  absl::Status Create(Client& client, size_t bytes) {
    cudaDeviceProp properties;
    absl::Status status = ToStatus(cudaSetDevice(device_), "cudaSetDevice");
    if (status.ok()) {
      status = ToStatus(cudaGetDeviceProperties(&properties, device_),
                        "cudaGetDeviceProperties");
    }
    if (status.ok()) status = ToStatus(cudaMalloc(&data_, bytes), "cudaMalloc");
    cudaIpcMemHandle_t handle;
    if (status.ok()) {
      status =
          ToStatus(cudaIpcGetMemHandle(&handle, data_), "cudaIpcGetMemHandle");
    }
    if (!status.ok()) return status;
    auto region = client.RegisterCudaMemory(
        {.data = data_,
         .size_bytes = bytes,
         .memory_handle = std::string(handle.reserved, sizeof(handle.reserved)),
         .device_uuid =
             std::string(properties.uuid.bytes, sizeof(properties.uuid.bytes)),
         .lease = kLease});
    if (!region.ok()) return region.status();
    region_ = *std::move(region);
    return absl::OkStatus();
  }

  char* data() const override { return static_cast<char*>(data_); }
  absl::Status Write(char* to, const void* from, size_t bytes) override {
    return Copy(to, from, bytes, cudaMemcpyHostToDevice);
  }
  absl::Status Read(void* to, const char* from, size_t bytes) override {
    return Copy(to, from, bytes, cudaMemcpyDeviceToHost);
  }

 private:
  absl::Status Copy(void* to, const void* from, size_t bytes,
                    cudaMemcpyKind kind) const {
    absl::Status status = ToStatus(cudaSetDevice(device_), "cudaSetDevice");
    if (status.ok()) {
      status =
          ToStatus(cudaMemcpyAsync(to, from, bytes, kind, cudaStreamPerThread),
                   "cudaMemcpyAsync");
    }
    if (!status.ok()) return status;
    return ToStatus(cudaStreamSynchronize(cudaStreamPerThread),
                    "cudaStreamSynchronize");
  }

  const int device_;
  void* data_ = nullptr;
  std::unique_ptr<CudaMemoryRegion> region_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TensorMemory>> MakeCudaMemory(Client& client,
                                                             size_t bytes,
                                                             int device) {
  auto memory = std::make_unique<CudaTensorMemory>(device);
  if (absl::Status s = memory->Create(client, bytes); !s.ok()) return s;
  return memory;
}

}  // namespace attention::loadtest
