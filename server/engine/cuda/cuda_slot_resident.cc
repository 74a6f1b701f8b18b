// Works on keys and values that stay on the device.
#include "server/engine/cuda/cuda_slot.h"
#include "server/engine/cuda/page_moves.h"

namespace attention {

absl::Status CudaSlot::EnqueueResident(absl::Span<PreparedWork> works,
                                       KvBatch& kv_batch, PassReport& report) {
  kv_batch.AwaitTurn();
  CudaRuntime::Event& before = shared_.resident_computed;
  if (before != nullptr && before != events_[kComputed]) {
    absl::Status status = shared_.runtime.WaitEvent(stream_, before);
    if (status.ok()) status = RecordMark(kTurn);
    if (!status.ok()) return status;
    compute_start_ = kTurn;
  }
  paged_binding_.Start(works);
  absl::Status status = LaunchSteps(kv_batch, report, /*is_first=*/true);
  while (status.ok() && paged_binding_.has_more()) {
    // Scratch memory is used once more.
    status = shared_.runtime.Synchronize(stream_);
    if (status.ok()) status = LaunchSteps(kv_batch, report, false);
  }
  if (status.ok()) status = RecordMark(kComputed);
  // After an error nobody may come next before the stream has been waited for.
  if (!status.ok()) return status;
  before = events_[kComputed];
  kv_batch.Ordered();
  return status;
}

absl::Status CudaSlot::LaunchSteps(KvBatch& kv_batch, PassReport& report,
                                   bool is_first) {
  const PagedParams params = paged_binding_.BeginLaunch(kv_batch);
  paged_binding_.AddCost(report);
  absl::Status status = kv_batch.Move([&](absl::Span<const PageMove> moves) {
    absl::Status status = EnqueueMoves(shared_.runtime, moves, stream_);
    if (!status.ok() || !is_first) return status;
    compute_start_ = kTurn;
    return RecordMark(kTurn);
  });
  for (const PreparedWork* prepared : paged_binding_.to_clear()) {
    if (status.ok()) status = ClearResults(*prepared);
  }
  return status.ok() ? LaunchPaged(params) : status;
}

// Scratch memory was reserved for estimated lengths. A launch that has outgrown
// it gets more; if there is none, it becomes several that use it one after the
// other, as what has begun must be computed.
absl::Status CudaSlot::LaunchPaged(const PagedParams& params) {
  absl::Status status =
      ReserveScratch(shared_.runtime.PagedScratchSize(params));
  if (status.ok()) {
    return shared_.runtime.LaunchPaged(params, Scratch(), stream_);
  }
  if (params.sequence_count <= 1) return status;
  PagedParams first = params;
  first.sequence_count /= 2;
  PagedParams rest = params;
  rest.sequences += first.sequence_count;
  rest.sequence_count -= first.sequence_count;
  rest.copy_count = 0;
  status = LaunchPaged(first);
  if (status.ok()) status = shared_.runtime.Synchronize(stream_);
  return status.ok() ? LaunchPaged(rest) : status;
}

}  // namespace attention
