#include "tests/support/device_memory.h"

#include "absl/strings/str_cat.h"

namespace attention::test {

absl::Status CudaStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(what, ": ", cudaGetErrorString(error)));
}

absl::Status DeviceBuffers::CopyIn() {
  if (copies_.empty()) {
    for (const Buffer& buffer : buffers_) {
      void* copy = nullptr;
      auto status =
          CudaStatus(cudaMalloc(&copy, buffer.bytes.size()), "malloc");
      if (!status.ok()) return status;
      copies_.emplace_back(copy);
    }
  }
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const auto& bytes = buffers_[i].bytes;
    auto status = CudaStatus(cudaMemcpy(copies_[i].get(), bytes.data(),
                                        bytes.size(), cudaMemcpyHostToDevice),
                             "copy in");
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status DeviceBuffers::ClearOutputs() {
  for (size_t i = 0; i < buffers_.size(); ++i) {
    if (!buffers_[i].writable) continue;
    auto status = CudaStatus(
        cudaMemset(copies_[i].get(), 0xff, buffers_[i].bytes.size()), "clear");
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status DeviceBuffers::CopyOut() {
  for (size_t i = 0; i < buffers_.size(); ++i) {
    if (!buffers_[i].writable) continue;
    auto status =
        CudaStatus(cudaMemcpy(buffers_[i].bytes.data(), copies_[i].get(),
                              buffers_[i].bytes.size(), cudaMemcpyDeviceToHost),
                   "copy out");
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void DeviceBuffers::RedirectTensors(Sequence& s) const {
  Redirect(s.query);
  Redirect(s.key);
  Redirect(s.value);
  Redirect(s.output);
  Redirect(s.log_sum_exp);
  Redirect(s.weights);
}

absl::Status DeviceScratch::Allocate(cuda::ScratchBytes size) {
  host_.reset();
  device_.reset();
  device_bytes_ = 0;
  void* memory = nullptr;
  if (size.host_bytes > 0) {
    auto status =
        CudaStatus(cudaMallocHost(&memory, size.host_bytes), "pinned");
    if (!status.ok()) return status;
    host_.reset(memory);
  }
  if (size.device_bytes > 0) {
    auto status = CudaStatus(cudaMalloc(&memory, size.device_bytes), "scratch");
    if (!status.ok()) return status;
    device_.reset(memory);
    device_bytes_ = size.device_bytes;
  }
  return Clear();
}

absl::Status DeviceScratch::Clear() {
  if (device_bytes_ == 0) return absl::OkStatus();
  return CudaStatus(cudaMemset(device_.get(), 0xff, device_bytes_), "clear");
}

}  // namespace attention::test
