// Takes the payloads of a batch to the GPU.
#ifndef ATTENTION_SERVER_ENGINE_CUDA_INPUT_COPY_H_
#define ATTENTION_SERVER_ENGINE_CUDA_INPUT_COPY_H_

#include <cstddef>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "server/engine/batch_binding.h"
#include "server/engine/copy_threads.h"
#include "server/engine/cuda/batch_memory.h"
#include "server/engine/cuda/cuda_runtime.h"

namespace attention {

// Gathers payloads into staging memory, on several threads if there is much to
// gather, and sends what is complete across the bus while the rest is still
// being gathered. Payloads in pinned memory are sent from there, first of all.
// Used by one thread at a time.
class InputCopy {
 public:
  // Both must outlive this object.
  InputCopy(CudaRuntime* runtime, CopyThreads* threads)
      : runtime_(*runtime), threads_(*threads) {}

  // Fills the staging memory of all works and enqueues its copies to the
  // device. Resets each payload_owner. The first error of the runtime; one of a
  // payload's source goes to the `status` of its work.
  absl::Status Run(absl::Span<PreparedWork> works, CudaRuntime::Stream stream);

 private:
  // A part of a fragment, or of a source if that is set.
  struct Piece {
    PreparedWork* work;
    const PayloadSource* source;
    const char* from;
    size_t source_offset;
    char* to;
    size_t bytes;
  };
  // What one thread gathers at a time. All inputs lie on one line, one extent
  // after the other; staging memory is filled up to `end` on it.
  struct Task {
    size_t first_piece;
    size_t end_piece = 0;
    size_t end = 0;
  };
  // A payload that no processor copies. Sent, unless it is on the device
  // already.
  struct Direct {
    PreparedWork* work;
    const PayloadSource* source;
    const void* pinned;  // null if it is there
    void* device;
    size_t bytes;
  };
  // Memory without a gap, on the host and on the device.
  struct Extent {
    char* host;
    char* device;
    size_t begin;  // on the line
    size_t end;
  };

  void Plan(absl::Span<PreparedWork> works);
  void PlanPayload(const Payload& payload, const TensorPlace& place,
                   PreparedWork& work);
  void PlanPiece(Piece piece);
  void Gather(const Task& task) ABSL_LOCKS_EXCLUDED(source_mutex_);
  absl::Status SendDirect(CudaRuntime::Stream stream);
  absl::Status SendUpTo(size_t end, CudaRuntime::Stream stream);

  CudaRuntime& runtime_;
  CopyThreads& threads_;
  absl::Mutex source_mutex_;  // over the `status` of works

  // Of the batch at hand; kept to use their memory again.
  std::vector<Direct> direct_;
  std::vector<Piece> pieces_;
  std::vector<Task> tasks_;
  std::vector<Extent> extents_;
  std::vector<size_t> last_task_;  // per work: tasks up to its last byte
  size_t task_bytes_ = 0;          // of the last task
  size_t total_bytes_ = 0;
  size_t sent_ = 0;
  size_t sending_ = 0;  // the extent that holds `sent_`
};

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_CUDA_INPUT_COPY_H_
