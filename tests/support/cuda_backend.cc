#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/attention_cuda.h"
#include "kernels/validation.h"
#include "tests/support/kernel_backend.h"

namespace attention::test {
namespace {

absl::Status ToStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(what, ": ", cudaGetErrorString(error)));
}

struct DeviceFree {
  void operator()(void* p) const { cudaFree(p); }
};
struct PinnedFree {
  void operator()(void* p) const { cudaFreeHost(p); }
};
using DevicePointer = std::unique_ptr<void, DeviceFree>;
using PinnedPointer = std::unique_ptr<void, PinnedFree>;

class CudaBackend : public KernelBackend {
 public:
  absl::Status Compute(const AttentionParams& params,
                       std::span<Buffer> buffers) override {
    if (auto status = ValidateParams(params); !status.ok()) return status;
    std::vector<DevicePointer> copies;
    for (const Buffer& buffer : buffers) {
      void* copy = nullptr;
      auto status = ToStatus(cudaMalloc(&copy, buffer.bytes.size()), "malloc");
      if (!status.ok()) return status;
      copies.emplace_back(copy);
      status = ToStatus(cudaMemcpy(copy, buffer.bytes.data(),
                                   buffer.bytes.size(), cudaMemcpyHostToDevice),
                        "copy in");
      if (!status.ok()) return status;
    }

    const auto to_device = [&](auto*& pointer) {
      const auto* host = reinterpret_cast<const std::byte*>(pointer);
      for (size_t i = 0; i < buffers.size(); ++i) {
        const auto& bytes = buffers[i].bytes;
        if (host >= bytes.data() && host <= bytes.data() + bytes.size()) {
          auto* device =
              static_cast<std::byte*>(copies[i].get()) + (host - bytes.data());
          pointer = reinterpret_cast<std::decay_t<decltype(pointer)>>(device);
          return;
        }
      }
    };
    std::vector<Sequence> sequences(params.sequences,
                                    params.sequences + params.sequence_count);
    for (Sequence& s : sequences) {
      to_device(s.query);
      to_device(s.key);
      to_device(s.value);
      to_device(s.output);
      to_device(s.log_sum_exp);
      to_device(s.weights);
    }
    const AttentionParams device_params{params.config, sequences.data(),
                                        params.sequence_count};
    if (auto status = Launch(device_params); !status.ok()) return status;

    for (size_t i = 0; i < buffers.size(); ++i) {
      if (!buffers[i].writable) continue;
      auto status =
          ToStatus(cudaMemcpy(buffers[i].bytes.data(), copies[i].get(),
                              buffers[i].bytes.size(), cudaMemcpyDeviceToHost),
                   "copy out");
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Launch(const AttentionParams& params) {
    const cuda::ScratchBytes size = cuda::ScratchSize(params);
    void* host = nullptr;
    void* device = nullptr;
    auto status = ToStatus(cudaMallocHost(&host, size.host_bytes), "pinned");
    const PinnedPointer host_owner(host);
    if (!status.ok()) return status;
    status = ToStatus(cudaMalloc(&device, size.device_bytes), "scratch");
    const DevicePointer device_owner(device);
    if (!status.ok()) return status;
    // Scratch comes with whatever was there before: NaN is the worst.
    status = ToStatus(cudaMemset(device, 0xff, size.device_bytes), "memset");
    if (!status.ok()) return status;
    status = ToStatus(cuda::Launch(params, {host, device}, nullptr), "launch");
    if (!status.ok()) return status;
    return ToStatus(cudaStreamSynchronize(nullptr), "synchronize");
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<KernelBackend>> MakeCudaBackend() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    return absl::UnavailableError(
        absl::StrCat("no CUDA device: ", cudaGetErrorString(error)));
  }
  return std::make_unique<CudaBackend>();
}

}  // namespace attention::test
