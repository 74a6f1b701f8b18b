// A resident batch on its way through the KvCache.
#ifndef ATTENTION_SERVER_ENGINE_KV_BATCH_H_
#define ATTENTION_SERVER_ENGINE_KV_BATCH_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "server/engine/kv_cache.h"

namespace attention {

// Keeps to the order in which the cache wants to be called, whatever happens to
// the batch and in however many passes it is computed: every batch begins, all
// of it begins, and it ends. Used by one thread.
class KvBatch {
 public:
  // The cache must outlive this object.
  KvBatch(KvCache& cache, uint64_t number) : cache_(cache), number_(number) {}
  ~KvBatch() { End(); }
  KvBatch(const KvBatch&) = delete;
  KvBatch& operator=(const KvBatch&) = delete;

  // --- For the executor of a pass, in this order. Until it awaits its turn,
  // nothing has happened to any session.

  // Waits until the steps of earlier batches have all begun.
  void AwaitTurn();
  // As KvCache::Begin. When it is called, everything that can fail for a lack
  // of memory should have happened.
  absl::Status Begin(const KvStep& step, KvView& view);
  // As KvCache::Move, when all steps of a launch have begun.
  absl::Status Move(
      absl::FunctionRef<absl::Status(absl::Span<const PageMove>)> move) {
    return cache_.Move(move);
  }
  // The device has put the computation of all steps of the pass in order.
  void Ordered();
  // The computation has failed: ends the pass and the batch, for executors that
  // would let the next batch begin before they return.
  void Fail();

  // --- For who runs the passes.

  // In the last pass later batches may begin as soon as its steps are in order.
  void StartPass(bool is_last) { is_last_pass_ = is_last; }
  // Nothing on the device uses the pass any more. If it failed after steps had
  // begun, the sessions of the batch are lost.
  void EndPass(bool ok);
  // Whether sessions have been lost that way: then no step may begin any more.
  bool has_failed() const { return !ok_; }
  // The batch is over. Idempotent.
  void End();

 private:
  void AllBegun();

  KvCache& cache_;
  const uint64_t number_;
  bool has_turn_ = false;
  bool all_begun_ = false;
  bool ended_ = false;
  bool is_last_pass_ = true;
  bool pass_has_steps_ = false;
  bool ok_ = true;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_KV_BATCH_H_
