// From resident Works to kernel parameters.
#ifndef ATTENTION_SERVER_ENGINE_PAGED_BINDING_H_
#define ATTENTION_SERVER_ENGINE_PAGED_BINDING_H_

#include <cstddef>
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

  // The works whose steps BeginLaunch begins; kept until the last of them has.
  void Start(absl::Span<PreparedWork> works);
  // Begins steps of works that have not failed, in order, as many as can share
  // a launch, and sets their sequence_statuses: the launch is of the steps that
  // are OK. It is the batch's turn. At least once after Start.
  PagedParams BeginLaunch(KvBatch& batch);
  // Whether there are steps for another launch, once that one is in order.
  bool has_more() const { return next_work_ < works_.size(); }
  // Works of whose results the launch and later ones leave something out: to be
  // cleared before it.
  absl::Span<PreparedWork* const> to_clear() const { return to_clear_; }

  // Adds what the steps of the last launch ask of the device.
  void AddCost(PassReport& report) const;

 private:
  PagedParams Params(const PagedConfig& config);

  // False, and the work goes on with the next launch, if a step must wait for
  // that.
  bool BeginSteps(PreparedWork& prepared, KvBatch& batch);

  PagedConfig config_;
  absl::Span<PreparedWork> works_;
  size_t next_work_ = 0;
  std::vector<PreparedWork*> to_clear_;
  std::vector<KvView> views_;  // as many as there ever were
  std::vector<PagedSequence> sequences_;
  std::vector<PageCopy> copies_;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_PAGED_BINDING_H_
