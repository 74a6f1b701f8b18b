// Inputs that go to a GPU's memory in pieces, as they arrive.
#ifndef ATTENTION_SERVER_ENGINE_CUDA_DEVICE_UPLOAD_H_
#define ATTENTION_SERVER_ENGINE_CUDA_DEVICE_UPLOAD_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "server/engine/cuda/cuda_runtime.h"
#include "server/engine/cuda/cuda_slot.h"
#include "server/engine/input_upload.h"
#include "server/memory/memory_pool.h"

namespace attention {

// What the uploads of a GPU take turns on: streams of their own, so that copies
// overlap what the slots compute, each with pinned memory for a few megabytes on
// the way. Thread-safe.
class UploadLanes {
 public:
  // `shared` outlives this object.
  explicit UploadLanes(const CudaSlot::Shared* shared) : shared_(*shared) {}
  ~UploadLanes();

  // Memory on the GPU. RESOURCE_EXHAUSTED when it does not fit at present,
  // otherwise CUDA's errors. The lanes outlive the result.
  absl::StatusOr<std::unique_ptr<InputUpload>> Reserve(const InputSizes& sizes)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class Upload;
  struct Lane {
    CudaRuntime::Stream stream = nullptr;
    Block pinned;
  };

  // Makes the GPU the current one of this thread.
  absl::Status EnterDevice();
  absl::Status MakeLanes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasFreeLane() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !free_.empty();
  }
  // Copies the fragments to `to`, and waits until they are there. May also wait
  // for other uploads' turns.
  absl::Status Copy(absl::Span<const absl::string_view> fragments, char* to)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CopyOn(const Lane& lane,
                      absl::Span<const absl::string_view> fragments, char* to);

  const CudaSlot::Shared& shared_;
  absl::Mutex mutex_;
  std::vector<std::unique_ptr<Lane>> lanes_ ABSL_GUARDED_BY(mutex_);
  std::vector<Lane*> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_CUDA_DEVICE_UPLOAD_H_
