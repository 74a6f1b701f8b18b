// Takes a batch through memory, computation and answers, on any backend.
//
// A work that does not fit into memory beside the others of its batch waits and
// is tried again when they are done; one that does not fit alone either is
// answered with RESOURCE_EXHAUSTED. So memory pressure splits a batch instead
// of failing it.
//
// Works of a resident batch keep their order then too: nothing overtakes a work
// that waits. Their answers wait for the last pass, as nobody may act on one
// before all of the batch has begun: the next batch could be computed on the
// thread that hears of it, and would wait for this one.
#ifndef ATTENTION_SERVER_ENGINE_BATCH_RUNNER_H_
#define ATTENTION_SERVER_ENGINE_BATCH_RUNNER_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/engine/attention_work.h"
#include "server/engine/batch_binding.h"
#include "server/engine/copy_threads.h"
#include "server/engine/kv_batch.h"
#include "server/engine/kv_cache.h"
#include "server/metrics/metrics.h"

namespace attention {

// What works that were computed together have in common.
struct PassReport {
  absl::Duration copy_in;
  absl::Duration compute;
  absl::Duration copy_out;
  size_t copied_in_bytes = 0;
  size_t copied_out_bytes = 0;
  // Of resident works only, known when they have begun.
  double flops = 0;
  double resident_bytes = 0;  // of keys and values read from pages
};

// One slot of a device. Used by one thread at a time.
class BatchExecutor {
 public:
  virtual ~BatchExecutor() = default;

  // Gets memory that works share, for as many from the front as is worth it and
  // fits: fills in everything else of them, and returns how many. The others go
  // through Prepare.
  virtual size_t PrepareTogether(absl::Span<PreparedWork> /*works*/) {
    return 0;
  }

  // Gets memory for `prepared.work`: fills in everything else of `prepared`.
  // RESOURCE_EXHAUSTED when it does not fit at present; then `prepared` holds
  // no memory that matters.
  virtual absl::Status Prepare(PreparedWork& prepared) = 0;

  // Gets the memory that the works need together, until Compute has returned.
  // RESOURCE_EXHAUSTED when fewer works may fit.
  virtual absl::Status Reserve(const HeadConfig& config,
                               absl::Span<PreparedWork> works) = 0;

  // Computes the works, whose results are then in their blocks. Resets each
  // payload_owner as soon as the payload is not needed any more. An error
  // concerns all of them; that of a single work goes to its `status`.
  // `kv_batch` is that of resident works, null for others.
  virtual absl::StatusOr<PassReport> Compute(const HeadConfig& config,
                                             absl::Span<PreparedWork> works,
                                             KvBatch* kv_batch) = 0;
};

// Runs the batch, calls every work's `done` and reports to `metrics`; the last
// report comes before the last `done`, and so does the end of a resident batch,
// for which `kv_cache` must be set. Calls `free_slot` once, when the executor is
// not needed any more: before the last answers where they are many, so that the
// next batch does not wait for what it takes to send them, and after them where
// they are few and would wait for the next batch to begin. `helpers`, which may
// be null, help to call `done` where works are many.
void RunBatch(std::unique_ptr<Batch> batch, BatchExecutor& executor,
              const std::string& device_name, KvCache* kv_cache,
              Metrics& metrics, absl::FunctionRef<void()> free_slot,
              CopyThreads* helpers = nullptr);

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_BATCH_RUNNER_H_
