// One stream of a GPU and what is bound to it.
#ifndef ATTENTION_SERVER_ENGINE_CUDA_CUDA_SLOT_H_
#define ATTENTION_SERVER_ENGINE_CUDA_CUDA_SLOT_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/engine/batch_runner.h"
#include "server/engine/copy_threads.h"
#include "server/engine/cuda/cuda_runtime.h"
#include "server/engine/cuda/input_copy.h"
#include "server/engine/cuda/part_pipeline.h"
#include "server/engine/cuda/work_parts.h"
#include "server/engine/kv_batch.h"
#include "server/engine/paged_binding.h"
#include "server/memory/memory_pool.h"

namespace attention {

// Computes batches on one stream: inputs are gathered into pinned memory and
// copied while later ones are still being gathered, one launch computes all
// sequences, results are copied into pinned blocks that are handed out as they
// are. Tensors in pinned memory of callers are copied from and to there, those
// in the GPU's memory are used in place. Small works share blocks and copies;
// one with a large answer is computed in parts, whose copies overlap.
// Slots of one device overlap each other, except for the computations of
// resident batches, which follow each other in the order of their numbers.
class CudaSlot : public BatchExecutor {
 public:
  // What the slots of a device share; outlives them.
  struct Shared {
    CudaRuntime& runtime;
    int device;
    MemoryPool& pinned_pool;
    MemoryPool& device_pool;
    CopyThreads& copy_threads;
    // Happens when the resident batch before has been computed; null before the
    // first. It belongs to the slot that has the turn (KvBatch::AwaitTurn)
    // until that says that its computation is in order.
    CudaRuntime::Event& resident_computed;
    std::atomic<int>& computing_slots;  // how many are in Compute
    // Tells of an error that the device will not recover from. Returns the
    // status of works that it concerns.
    std::function<absl::Status(const absl::Status&)> fail_device;
    // Not OK once it has failed: the status of later works.
    std::function<absl::Status()> health;

    // Tells errors of the request from the end of the device.
    absl::Status Classify(absl::Status status,
                          CudaRuntime::Stream stream) const;
  };

  static absl::StatusOr<std::unique_ptr<CudaSlot>> Create(const Shared* shared);
  ~CudaSlot() override;

  size_t PrepareTogether(absl::Span<PreparedWork> works) override;
  absl::Status Prepare(PreparedWork& prepared) override;
  absl::Status Reserve(const HeadConfig& config,
                       absl::Span<PreparedWork> works) override;
  absl::StatusOr<PassReport> Compute(const HeadConfig& config,
                                     absl::Span<PreparedWork> works,
                                     KvBatch* kv_batch) override;

 private:
  // kTurn: the batch's turn has come and pages have moved, if it had to wait
  // for that.
  enum Mark { kStart, kCopiedIn, kTurn, kComputed, kCopiedOut, kMarkCount };

  explicit CudaSlot(const Shared* shared)
      : shared_(*shared),
        input_copy_(&shared->runtime, &shared->copy_threads) {}

  AttentionParams Params(const HeadConfig& config) const;
  CudaRuntime::Scratch Scratch() const {
    return {.host = host_scratch_.data(), .device = device_scratch_.data()};
  }
  // Makes scratch memory at least as large; keeps it if it is.
  absl::Status ReserveScratch(const CudaRuntime::ScratchBytes& bytes);
  CudaRuntime::ScratchBytes ScratchSize(const HeadConfig& config) const;
  absl::Status Enqueue(const HeadConfig& config, absl::Span<PreparedWork> works,
                       KvBatch* kv_batch, PassReport& report);
  absl::Status EnqueueResident(absl::Span<PreparedWork> works,
                               KvBatch& kv_batch, PassReport& report);
  absl::Status LaunchSteps(KvBatch& kv_batch, PassReport& report,
                           bool is_first);
  absl::Status LaunchPaged(const PagedParams& params);
  absl::Status RecordMark(Mark mark);  // if the batch has marks
  absl::Status EnqueueParts(PreparedWork& prepared);
  absl::Status ClearResults(const PreparedWork& prepared);
  absl::Status CopyOut(absl::Span<const PreparedWork> works);
  absl::Status CopyOutStaged(absl::Span<const PreparedWork> works);
  PassReport PlanMarks(absl::Span<const PreparedWork> works);
  absl::Status MeasurePhases(PassReport& report);
  absl::Status EnterDevice();
  absl::Status Classify(absl::Status status) const {
    return shared_.Classify(std::move(status), stream_);
  }

  const Shared& shared_;
  InputCopy input_copy_;
  CudaRuntime::Stream stream_ = nullptr;
  std::array<CudaRuntime::Event, kMarkCount> events_ = {};
  std::unique_ptr<PartPipeline> part_pipeline_;
  // From Reserve to the end of Compute.
  std::vector<Sequence> sequences_;
  WorkParts parts_;  // of the only work; without parts, all go as they are
  PagedBinding paged_binding_;
  // Of the batch; those of two that coincide are one. None at all where nothing
  // but the computation happens: from compute_begin_ on.
  bool has_marks_ = true;
  std::chrono::steady_clock::time_point compute_begin_;
  Mark copied_in_ = kCopiedIn;
  Mark compute_start_ = kCopiedIn;
  Mark copied_out_ = kCopiedOut;
  Block host_scratch_;
  Block device_scratch_;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_CUDA_CUDA_SLOT_H_
