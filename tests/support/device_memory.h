// The memory of test problems on the current CUDA device.
#ifndef ATTENTION_TESTS_SUPPORT_DEVICE_MEMORY_H_
#define ATTENTION_TESTS_SUPPORT_DEVICE_MEMORY_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/attention_params.h"
#include "kernels/cuda/attention_cuda.h"
#include "tests/support/attention_problem.h"

namespace attention::test {

// Internal, with `what` and CUDA's text, unless cudaSuccess.
absl::Status CudaStatus(cudaError_t error, const char* what);

struct DeviceFree {
  void operator()(void* p) const { cudaFree(p); }
};
struct PinnedFree {
  void operator()(void* p) const { cudaFreeHost(p); }
};
using DevicePointer = std::unique_ptr<void, DeviceFree>;
using PinnedPointer = std::unique_ptr<void, PinnedFree>;

// The device's copies of a problem's buffers, which must outlive it.
class DeviceBuffers {
 public:
  explicit DeviceBuffers(std::span<Buffer> buffers) : buffers_(buffers) {}

  // Makes the copies equal to the buffers. Waits for earlier work.
  absl::Status CopyIn();
  // Makes every element of the writable copies NaN. Waits for earlier work on
  // the default stream.
  absl::Status ClearOutputs();
  // Makes the writable buffers equal to their copies. Waits for earlier work on
  // the default stream.
  absl::Status CopyOut();

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
  void RedirectTensors(Sequence& sequence) const;

 private:
  const std::span<Buffer> buffers_;
  std::vector<DevicePointer> copies_;
};

// Scratch memory of a launch. What it holds at first is NaN, the worst that may
// have been there before.
class DeviceScratch {
 public:
  absl::Status Allocate(cuda::ScratchBytes size);
  // Makes what the device has of it NaN again. Waits for earlier work on the
  // default stream.
  absl::Status Clear();
  cuda::Scratch get() const { return {host_.get(), device_.get()}; }

 private:
  PinnedPointer host_;
  DevicePointer device_;
  size_t device_bytes_ = 0;
};

}  // namespace attention::test

#endif  // ATTENTION_TESTS_SUPPORT_DEVICE_MEMORY_H_
