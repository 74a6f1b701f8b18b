// Keys and values that stay on a device between requests, as the engine sees
// them: it asks for pages when a batch begins, and tells when it is over.
//
// server/sessions implements this; the engine and the kernels do the rest. Works
// that use it carry KvSteps (AttentionWork::kv_steps).
#ifndef ATTENTION_SERVER_ENGINE_KV_CACHE_H_
#define ATTENTION_SERVER_ENGINE_KV_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/mask.h"
#include "kernels/paged_params.h"

namespace attention {

// One layer of one session. Opaque to the engine.
class KvLayer {
 public:
  virtual ~KvLayer() = default;
};

// What one sequence of a work does to a layer: appends tokens, attends with
// queries, or both (in this order).
struct KvStep {
  std::shared_ptr<KvLayer> layer;
  int64_t append_length = 0;
  // Queries that attend, the layer's last tokens after the append: tells which
  // keys must not have been freed by the layer's window.
  int64_t query_length = 0;
  // Position that the first appended token must get; unset: any.
  std::optional<int64_t> expected_position;
  // Only these keys are seen; unset: all. The end may not exceed the length
  // that the layer has after the append.
  std::optional<KeyRange> key_range;
};

// The part of a PagedSequence that the cache knows.
struct KvView {
  std::vector<void*> pages;
  std::vector<PageCopy> copies;  // to be made before anything is appended
  int64_t key_length = 0;        // the append included
  int64_t key_begin = 0;
  int64_t key_end = 0;
  int64_t window_left = kUnlimitedWindow;
  int64_t sink_tokens = 0;
  const float* key_scales = nullptr;    // valid as long as the layer
  const float* value_scales = nullptr;
  // Of a step that fails for lack of memory: what the steps before it in this
  // launch use may do for it, in the next one.
  bool waits_for_launch = false;
};

// A copy of pages, some that lie one after the other, between the device and
// memory of the host that it reaches.
struct PageMove {
  const void* from = nullptr;
  void* to = nullptr;
  size_t bytes = 0;
  bool to_host = false;
};

// All resident K/V of one device. Thread-safe.
//
// Batches begin in the order of their numbers; within a batch, steps in the
// order of Begin. The device's computations on pages run in the same order, one
// batch after the other, though copies of works in and out may overlap them. So
// what a step sees is decided by the order alone, and a page that a session
// loses while a batch reads it can be given to the next batch at once. Memory
// goes back to its pool only while no batch is between BeginBatch and EndBatch.
class KvCache {
 public:
  virtual ~KvCache() = default;

  // Waits until all batches with lower numbers have called AllBegun, which says
  // that the device has put their computations in order. Numbers count from 0
  // without gaps, in the order in which the scheduler formed the batches.
  virtual void BeginBatch(uint64_t number) = 0;

  // Checks the step against the state of its layer, and makes it happen as far
  // as the cache is concerned: after OK the tokens count as appended. Else the
  // layer is unchanged, and the step is not to be computed:
  //   NOT_FOUND            the session is gone
  //   ALREADY_EXISTS       the position is taken (a retry)
  //   OUT_OF_RANGE         the position leaves a gap, or the range exceeds the
  //                        layer or has been freed by its window
  //   RESOURCE_EXHAUSTED   no page is free, or the owner's quota is reached
  //   ABORTED              the session was lost, see EndBatch
  // All with a reason (server/engine/error_reason.h).
  virtual absl::Status Begin(uint64_t number, const KvStep& step,
                             KvView& view) = 0;
  // To be called when all steps of a launch have begun, before what they
  // compute is put in order. Idle sessions make room for them, or come back:
  // calls `move`, unless there is nothing to be moved, to put these copies in
  // order, one after the other, before the launch and after earlier ones. If
  // that fails, sessions that have pages in the host's memory are lost. Returns
  // what `move` does.
  virtual absl::Status Move(
      absl::FunctionRef<absl::Status(absl::Span<const PageMove>)> /*move*/) {
    return absl::OkStatus();
  }

  virtual void AllBegun(uint64_t number) = 0;

  // The batch is over: nothing on the device uses its views any more. If it
  // failed after Begin, the sessions that it appended to are lost: what their
  // pages hold is unknown. A failure that is known before AllBegun is told
  // before, so that no later batch uses them; EndBatch then stands for both.
  virtual void EndBatch(uint64_t number, bool ok) = 0;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_KV_CACHE_H_
