// A CUDA runtime without a GPU: device memory is host memory, launches run the
// CPU kernels, and errors come on demand. Streams put everything off until they
// are waited for, unless SetStreamPace says otherwise.
#ifndef ATTENTION_TESTS_SERVER_ENGINE_FAKE_CUDA_RUNTIME_H_
#define ATTENTION_TESTS_SERVER_ENGINE_FAKE_CUDA_RUNTIME_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "kernels/cpu/thread_pool.h"
#include "server/engine/cuda/cuda_runtime.h"

namespace attention::test {

// Checks what a real device would punish: use of memory outside of allocations,
// of the wrong kind or of another device, and use of a thread without a current
// device. Such calls fail with INTERNAL.
class FakeCudaRuntime : public CudaRuntime {
 public:
  enum class Call {
    kCopyToDevice,
    kCopyToHost,
    kClearDevice,
    kFillDevice,
    kPinMemory,
    kOpenShared,
    kLaunch,
    kLaunchPaged,
    kSynchronize,
    kRecordEvent,
    kWaitEvent,
    kElapsedTime,
  };

  explicit FakeCudaRuntime(int device_count = 1)
      : device_count_(device_count), threads_(2) {}
  ~FakeCudaRuntime() override;

  // The `n`-th call from now on (1: the next one) fails with INTERNAL. If
  // `sticky`, so does everything after it, for ever, as after an illegal
  // access.
  void FailCall(Call call, int n, bool sticky) ABSL_LOCKS_EXCLUDED(mutex_);
  // Allocations beyond fail with RESOURCE_EXHAUSTED.
  void LimitDeviceMemory(size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Device memory that a launch needs per sequence.
  void SetScratchPerSequence(size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // That of paged launches, per page of each sequence.
  void SetScratchPerPage(size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  // Memory that another process has on `device`, as that process sees it.
  // Returns its handle. Lives until the end of this object.
  std::string Share(int device, size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  char* shared_data(const std::string& handle) ABSL_LOCKS_EXCLUDED(mutex_);
  static std::string Uuid(int device);

  int launches() const { return calls(Call::kLaunch); }
  // Calls made so far, also those that failed.
  int calls(Call call) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Allocations that have not been freed, and memory pinned or opened.
  size_t live_allocations() const ABSL_LOCKS_EXCLUDED(mutex_);

  absl::StatusOr<int> DeviceCount() override;
  absl::StatusOr<Properties> GetProperties(int device) override;
  absl::Status SetDevice(int device) override;
  absl::StatusOr<void*> AllocateDevice(size_t bytes) override;
  void FreeDevice(void* data) override;
  absl::StatusOr<void*> AllocatePinned(size_t bytes) override;
  void FreePinned(void* data) override;
  absl::Status PinMemory(void* data, size_t bytes) override;
  void UnpinMemory(void* data) override;
  absl::StatusOr<SharedMemory> OpenShared(absl::string_view handle) override;
  void CloseShared(void* data) override;
  absl::StatusOr<Stream> CreateStream() override;
  void DestroyStream(Stream stream) override;
  absl::StatusOr<Event> CreateEvent() override;
  void DestroyEvent(Event event) override;
  absl::Status RecordEvent(Event event, Stream stream) override;
  absl::Status WaitEvent(Stream stream, Event event) override;
  absl::Status CopyToDevice(void* device, const void* host, size_t bytes,
                            Stream stream) override;
  absl::Status CopyToHost(void* host, const void* device, size_t bytes,
                          Stream stream) override;
  absl::Status WriteDevice(void* device, const void* host,
                           size_t bytes) override;
  absl::Status ClearDevice(void* device, size_t bytes, Stream stream) override;
  absl::Status FillDevice(float* device, float value, size_t count,
                          Stream stream) override;
  ScratchBytes ScratchSize(const AttentionParams& params) override;
  absl::Status Launch(const AttentionParams& params, const Scratch& scratch,
                      Stream stream) override;
  ScratchBytes PagedScratchSize(const PagedParams& params) override;
  absl::Status LaunchPaged(const PagedParams& params, const Scratch& scratch,
                           Stream stream) override;
  absl::Status Synchronize(Stream stream) override;
  absl::StatusOr<absl::Duration> ElapsedTime(Event from, Event to) override;
  absl::Status CheckDevice(Stream stream) override;

 private:
  enum class Kind { kDevice, kPinned };
  struct Allocation {
    size_t bytes;
    Kind kind;
    bool is_foreign = false;  // allocated by others
    int device = -1;          // of kDevice
  };
  struct Shared {
    int device;
    std::vector<char> bytes;
  };

  static void Enqueue(Stream stream, std::function<void()> operation);

  // Counts the call; the injected error, or the sticky one.
  absl::Status Enter(Call call) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<void*> Allocate(size_t bytes, Kind kind)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Free(void* data, Kind kind, bool is_foreign = false)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckPointers(const Sequence& sequence) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckPaged(const PagedParams& params) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckScratch(const Scratch& scratch,
                            const ScratchBytes& bytes) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckRange(const void* data, size_t bytes, Kind kind) const
      ABSL_LOCKS_EXCLUDED(mutex_);

  const int device_count_;
  cpu::ThreadPool threads_;
  mutable absl::Mutex mutex_;
  std::map<uintptr_t, Allocation> allocations_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Shared> shared_ ABSL_GUARDED_BY(mutex_);
  size_t device_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t device_limit_ ABSL_GUARDED_BY(mutex_) = ~size_t{0};
  size_t scratch_per_sequence_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t scratch_per_page_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<Call, int> calls_until_failure_ ABSL_GUARDED_BY(mutex_);
  bool sticky_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status device_error_ ABSL_GUARDED_BY(mutex_);
  std::map<Call, int> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attention::test

#endif  // ATTENTION_TESTS_SERVER_ENGINE_FAKE_CUDA_RUNTIME_H_
