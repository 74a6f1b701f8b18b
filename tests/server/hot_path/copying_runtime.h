// A CUDA runtime that does nothing but copy, at once, and allocates nothing
// itself: what is left is the server's own work. For what a server must do right
// there is the stricter FakeCudaRuntime.
#ifndef ATTENTION_TESTS_SERVER_HOT_PATH_COPYING_RUNTIME_H_
#define ATTENTION_TESTS_SERVER_HOT_PATH_COPYING_RUNTIME_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "server/engine/cuda/cuda_runtime.h"

namespace attention::test {

class CopyingRuntime final : public CudaRuntime {
 public:
  // To the device and from it.
  int64_t copied_bytes() const { return copied_bytes_; }

  absl::StatusOr<int> DeviceCount() override { return 1; }
  absl::StatusOr<Properties> GetProperties(int) override {
    return Properties{.name = "copying",
                      .compute_capability = "9.0",
                      .memory_bytes = size_t{1} << 30,
                      .multiprocessor_count = 1};
  }
  absl::Status SetDevice(int) override { return absl::OkStatus(); }

  absl::StatusOr<void*> AllocateDevice(size_t bytes) override {
    return std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  }
  void FreeDevice(void* data) override { std::free(data); }
  absl::StatusOr<void*> AllocatePinned(size_t bytes) override {
    return AllocateDevice(bytes);
  }
  void FreePinned(void* data) override { std::free(data); }
  absl::Status PinMemory(void*, size_t) override { return absl::OkStatus(); }
  void UnpinMemory(void*) override {}
  absl::StatusOr<SharedMemory> OpenShared(absl::string_view) override {
    return absl::UnimplementedError("there is no other process");
  }
  void CloseShared(void*) override {}

  absl::StatusOr<Stream> CreateStream() override { return this; }
  void DestroyStream(Stream) override {}
  absl::StatusOr<Event> CreateEvent() override { return this; }
  void DestroyEvent(Event) override {}
  absl::Status RecordEvent(Event, Stream) override { return absl::OkStatus(); }
  absl::Status WaitEvent(Stream, Event) override { return absl::OkStatus(); }
  absl::Status CopyToDevice(void* device, const void* host, size_t bytes,
                            Stream) override {
    return Copy(device, host, bytes);
  }
  absl::Status CopyToHost(void* host, const void* device, size_t bytes,
                          Stream) override {
    return Copy(host, device, bytes);
  }
  absl::Status WriteDevice(void* device, const void* host,
                           size_t bytes) override {
    std::memcpy(device, host, bytes);
    return absl::OkStatus();
  }
  absl::Status FillDevice(float* device, float value, size_t count,
                          Stream) override {
    std::fill_n(device, count, value);
    return absl::OkStatus();
  }
  absl::Status ClearDevice(void* device, size_t bytes, Stream) override {
    std::memset(device, 0, bytes);
    return absl::OkStatus();
  }
  ScratchBytes ScratchSize(const AttentionParams&) override { return {}; }
  absl::Status Launch(const AttentionParams&, const Scratch&, Stream) override {
    return absl::OkStatus();
  }
  ScratchBytes PagedScratchSize(const PagedParams&) override { return {}; }
  absl::Status LaunchPaged(const PagedParams&, const Scratch&,
                           Stream) override {
    return absl::OkStatus();
  }
  absl::Status Synchronize(Stream) override { return absl::OkStatus(); }
  absl::StatusOr<absl::Duration> ElapsedTime(Event, Event) override {
    return absl::Microseconds(1);
  }
  absl::Status CheckDevice(Stream) override { return absl::OkStatus(); }

 private:
  absl::Status Copy(void* to, const void* from, size_t bytes) {
    std::memcpy(to, from, bytes);
    copied_bytes_ += static_cast<int64_t>(bytes);
    return absl::OkStatus();
  }

  std::atomic<int64_t> copied_bytes_{0};
};

}  // namespace attention::test

#endif  // ATTENTION_TESTS_SERVER_HOT_PATH_COPYING_RUNTIME_H_
