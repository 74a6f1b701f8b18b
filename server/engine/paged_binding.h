// From resident Works to kernel parameters.
#ifndef ATTENTION_SERVER_ENGINE_PAGED_BINDING_H_
#define ATTENTION_SERVER_ENGINE_PAGED_BINDING_H_

#include <vector>

#include "absl/types/span.h"
#include "kernels/paged_params.h"
#include "server/engine/batch_binding.h"
#include "server/engine/batch_runner.h"
#include "server/engine/kv_batch.h"
#include "server/engine/kv_cache.h"

namespace attention {

// Makes the parameters of launches, one after the other, in memory that it
// keeps. What it returns is valid until the next call.
class PagedBinding {
 public:
  // What the launch will be like, as far as that is known before any step has
  // begun: for the size of its scratch memory. Pointers are null.
  PagedParams Estimate(absl::Span<const PreparedWork> works);

  // Begins the steps of all works that have not failed, in order, and sets
  // their sequence_statuses: the launch is of the steps that are OK. It is the
  // batch's turn.
  PagedParams Begin(absl::Span<PreparedWork> works, KvBatch& batch);

  // Adds what the steps that have begun ask of the device.
  void AddCost(PassReport& report) const;

 private:
  PagedParams Params(const PagedConfig& config);

  PagedConfig config_;
  std::vector<KvView> views_;  // as many as there ever were
  std::vector<PagedSequence> sequences_;
  std::vector<PageCopy> copies_;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_PAGED_BINDING_H_
