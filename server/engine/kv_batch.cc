#include "server/engine/kv_batch.h"

namespace attention {

void KvBatch::AwaitTurn() {
  if (has_turn_) return;
  cache_.BeginBatch(number_);
  has_turn_ = true;
}

absl::Status KvBatch::Begin(const KvStep& step, KvView& view) {
  absl::Status status = cache_.Begin(number_, step, view);
  pass_has_steps_ |= status.ok();
  return status;
}

void KvBatch::Ordered() {
  if (is_last_pass_) AllBegun();
}

void KvBatch::Fail() {
  EndPass(/*ok=*/false);
  End();
}

void KvBatch::EndPass(bool ok) {
  ok_ &= ok || !pass_has_steps_;
  pass_has_steps_ = false;
}

void KvBatch::End() {
  if (ended_) return;
  // After a failure the end comes first: no other batch may begin on what is
  // lost.
  ok_ ? AllBegun() : AwaitTurn();
  cache_.EndBatch(number_, ok_);
  ended_ = true;
}

void KvBatch::AllBegun() {
  if (all_begun_) return;
  AwaitTurn();
  cache_.AllBegun(number_);
  all_begun_ = true;
}

}  // namespace attention
