#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/attention_cuda.h"
#include "kernels/cuda/decode/decode.h"
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

// The device's copies of a problem's buffers.
class DeviceBuffers {
 public:
  explicit DeviceBuffers(std::span<Buffer> buffers) : buffers_(buffers) {}

  absl::Status CopyIn() {
    for (const Buffer& buffer : buffers_) {
      void* copy = nullptr;
      auto status = ToStatus(cudaMalloc(&copy, buffer.bytes.size()), "malloc");
      if (!status.ok()) return status;
      copies_.emplace_back(copy);
      status = ToStatus(cudaMemcpy(copy, buffer.bytes.data(),
                                   buffer.bytes.size(), cudaMemcpyHostToDevice),
                        "copy in");
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // Makes a pointer into a buffer one into its copy; leaves others alone.
  template <typename T>
  void Redirect(T*& pointer) const {
    const auto* host = reinterpret_cast<const std::byte*>(pointer);
    for (size_t i = 0; i < buffers_.size(); ++i) {
      const auto& bytes = buffers_[i].bytes;
      if (host >= bytes.data() && host <= bytes.data() + bytes.size()) {
        auto* device =
            static_cast<std::byte*>(copies_[i].get()) + (host - bytes.data());
        pointer = reinterpret_cast<T*>(device);
        return;
      }
    }
  }

  absl::Status CopyOut() {
    for (size_t i = 0; i < buffers_.size(); ++i) {
      if (!buffers_[i].writable) continue;
      auto status =
          ToStatus(cudaMemcpy(buffers_[i].bytes.data(), copies_[i].get(),
                              buffers_[i].bytes.size(), cudaMemcpyDeviceToHost),
                   "copy out");
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  std::span<Buffer> buffers_;
  std::vector<DevicePointer> copies_;
};

class DevicePages : public PageMemory {
 public:
  DevicePages(size_t bytes, DevicePointer memory)
      : bytes_(bytes), memory_(std::move(memory)) {}

  std::byte* data() override { return static_cast<std::byte*>(memory_.get()); }
  absl::StatusOr<std::vector<std::byte>> Read() override {
    std::vector<std::byte> copy(bytes_);
    auto status = ToStatus(
        cudaMemcpy(copy.data(), data(), bytes_, cudaMemcpyDeviceToHost),
        "read pages");
    if (!status.ok()) return status;
    return copy;
  }
  absl::Status Fill(size_t offset, size_t bytes, std::byte value) override {
    return ToStatus(cudaMemset(data() + offset, static_cast<int>(value), bytes),
                    "fill pages");
  }

 private:
  const size_t bytes_;
  const DevicePointer memory_;
};

class CudaBackend : public KernelBackend {
 public:
  absl::Status Compute(const AttentionParams& params,
                       std::span<Buffer> buffers) override {
    if (auto status = ValidateParams(params); !status.ok()) return status;
    DeviceBuffers device(buffers);
    if (auto status = device.CopyIn(); !status.ok()) return status;
    std::vector<Sequence> sequences(params.sequences,
                                    params.sequences + params.sequence_count);
    for (Sequence& s : sequences) {
      device.Redirect(s.query);
      device.Redirect(s.key);
      device.Redirect(s.value);
      device.Redirect(s.output);
      device.Redirect(s.log_sum_exp);
      device.Redirect(s.weights);
    }
    const AttentionParams device_params{params.config, sequences.data(),
                                        params.sequence_count};
    auto status =
        Launch(cuda::ScratchSize(device_params), [&](cuda::Scratch scratch) {
          return cuda::Launch(device_params, scratch, nullptr);
        });
    if (!status.ok()) return status;
    return device.CopyOut();
  }

  absl::StatusOr<std::unique_ptr<PageMemory>> AllocatePages(
      size_t bytes) override {
    void* memory = nullptr;
    auto status = ToStatus(cudaMalloc(&memory, bytes), "malloc");
    if (!status.ok()) return status;
    auto pages = std::make_unique<DevicePages>(bytes, DevicePointer(memory));
    status = pages->Fill(0, bytes, std::byte{0xff});
    if (!status.ok()) return status;
    return pages;
  }

  absl::Status ComputePaged(const PagedParams& params,
                            std::span<Buffer> buffers) override {
    if (auto status = ValidatePagedParams(params); !status.ok()) return status;
    DeviceBuffers device(buffers);
    if (auto status = device.CopyIn(); !status.ok()) return status;
    std::vector<PagedSequence> sequences(
        params.sequences, params.sequences + params.sequence_count);
    for (PagedSequence& s : sequences) {
      device.Redirect(s.query);
      device.Redirect(s.output);
      device.Redirect(s.log_sum_exp);
      device.Redirect(s.new_key);
      device.Redirect(s.new_value);
    }
    PagedParams device_params = params;
    device_params.sequences = sequences.data();
    auto status = Launch(
        cuda::PagedScratchSize(device_params), [&](cuda::Scratch scratch) {
          return cuda::LaunchPaged(device_params, scratch, nullptr);
        });
    if (!status.ok()) return status;
    return device.CopyOut();
  }

 private:
  template <typename Start>
  absl::Status Launch(cuda::ScratchBytes size, Start start) {
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
    status = ToStatus(start(cuda::Scratch{host, device}), "launch");
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
