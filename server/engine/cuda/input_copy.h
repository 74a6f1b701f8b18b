// Takes the payloads of a batch to the GPU.
#ifndef ATTENTION_SERVER_ENGINE_CUDA_INPUT_COPY_H_
#define ATTENTION_SERVER_ENGINE_CUDA_INPUT_COPY_H_

#include <cstddef>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "server/engine/batch_binding.h"
#include "server/engine/copy_threads.h"
#include "server/engine/cuda/batch_memory.h"
#include "server/engine/cuda/cuda_runtime.h"
#include "server/engine/cuda/work_parts.h"

namespace attention {

// Gathers payloads into staging memory, on several threads if there is much to
// gather, and sends what is complete across the bus while the rest is still
// being gathered. Payloads in pinned memory are sent from there, before others
// of their stage. Used by one thread at a time.
class InputCopy {
 public:
  // Both must outlive this object.
  InputCopy(CudaRuntime* runtime, CopyThreads* threads)
      : runtime_(*runtime), threads_(*threads) {}

  // Fills the staging memory of all works and enqueues its copies to the
  // device. Resets each payload_owner. The first error of the runtime; one of a
  // payload's source goes to the `status` of its work.
  absl::Status Run(absl::Span<PreparedWork> works, CudaRuntime::Stream stream);

  // As Run, for one work: stage by stage, which together are all of its inputs.
  // Calls `enqueued` once the copies of a stage are, and stops at its error.
  absl::Status RunInStages(
      PreparedWork& work, absl::Span<const InputRanges> stages,
      CudaRuntime::Stream stream,
      absl::FunctionRef<absl::Status(size_t stage)> enqueued);

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
  // What one thread gathers at a time.
  struct Task {
    size_t first_piece;
    size_t end_piece = 0;
    size_t end_bytes = 0;  // of all pieces up to there
  };
  // A payload, or a part of one, that no processor copies. Sent, unless it is
  // on the device already.
  struct Direct {
    PreparedWork* work;
    const PayloadSource* source;
    const void* pinned;  // null if it is there
    void* device;
    size_t bytes;
  };
  // What is to be enqueued before the caller hears of it.
  struct Stage {
    size_t end_direct;
    size_t end_piece;
  };

  void Clear();
  void PlanInputs(PreparedWork& work, const InputRanges& ranges);
  void PlanPayload(const Payload& payload, const TensorPlace& place,
                   const ByteRange& range, PreparedWork& work);
  void PlanPiece(Piece piece);
  void EndStage();
  absl::Status Execute(absl::Span<PreparedWork> works,
                       CudaRuntime::Stream stream,
                       absl::FunctionRef<absl::Status(size_t stage)> enqueued);
  void Gather(const Task& task) ABSL_LOCKS_EXCLUDED(source_mutex_);
  absl::Status SendStages(
      size_t gathered_tasks, CudaRuntime::Stream stream,
      absl::FunctionRef<absl::Status(size_t stage)> enqueued);
  absl::Status SendDirect(size_t end, CudaRuntime::Stream stream);
  absl::Status SendPieces(size_t end, CudaRuntime::Stream stream);

  CudaRuntime& runtime_;
  CopyThreads& threads_;
  absl::Mutex source_mutex_;  // over the `status` of works

  // Of the batch at hand; kept to use their memory again.
  std::vector<Direct> direct_;
  std::vector<Piece> pieces_;
  std::vector<Task> tasks_;
  std::vector<Stage> stages_;
  std::vector<size_t> last_task_;  // per work: tasks up to its last byte
  size_t task_bytes_ = 0;          // of the last task
  size_t total_bytes_ = 0;
  // Up to where direct_, pieces_ and stages_ have been sent.
  size_t sent_direct_ = 0;
  size_t sent_pieces_ = 0;
  size_t sent_bytes_ = 0;  // of pieces
  size_t sent_stages_ = 0;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_CUDA_INPUT_COPY_H_
