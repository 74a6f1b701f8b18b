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
#include "tests/support/device_memory.h"
#include "tests/support/kernel_backend.h"

namespace attention::test {
namespace {

class DevicePages : public PageMemory {
 public:
  DevicePages(size_t bytes, DevicePointer memory)
      : bytes_(bytes), memory_(std::move(memory)) {}

  std::byte* data() override { return static_cast<std::byte*>(memory_.get()); }
  absl::StatusOr<std::vector<std::byte>> Read() override {
    std::vector<std::byte> copy(bytes_);
    auto status = CudaStatus(
        cudaMemcpy(copy.data(), data(), bytes_, cudaMemcpyDeviceToHost),
        "read pages");
    if (!status.ok()) return status;
    return copy;
  }
  absl::Status Fill(size_t offset, size_t bytes, std::byte value) override {
    return CudaStatus(
        cudaMemset(data() + offset, static_cast<int>(value), bytes),
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
      device.RedirectTensors(s);
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
    auto status = CudaStatus(cudaMalloc(&memory, bytes), "malloc");
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
    DeviceScratch scratch;
    auto status = scratch.Allocate(size);
    if (!status.ok()) return status;
    status = CudaStatus(start(scratch.get()), "launch");
    if (!status.ok()) return status;
    return CudaStatus(cudaStreamSynchronize(nullptr), "synchronize");
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
