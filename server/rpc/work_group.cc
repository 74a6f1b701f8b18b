#include "server/rpc/work_group.h"

#include <utility>

namespace attention {

void WorkGroup::Start(Scheduler* scheduler, Works works,
                      const std::shared_ptr<Owner>& owner) {
  owner_ = owner.get();
  unfinished_.fetch_add(works.size(), std::memory_order_relaxed);
  results_.resize(works.size());
  // Before any `done` refers to them.
  for (size_t i = 0; i < works.size(); ++i) slots_.push_back({this, i});
  absl::InlinedVector<WorkId, 1> ids;
  for (size_t i = 0; i < works.size(); ++i) {
    works[i]->done = [slot = std::shared_ptr<Slot>(owner, &slots_[i])](
                         absl::StatusOr<WorkResult> result) {
      slot->group->Finish(slot->index, std::move(result));
    };
    const absl::StatusOr<WorkId> id = scheduler->Enqueue(works[i]);
    if (id.ok()) {
      ids.push_back(*id);
    } else {
      Finish(i, id.status());
    }
  }
  bool cancelled;
  {
    absl::MutexLock lock(&mutex_);
    scheduler_ = scheduler;
    ids_ = ids;
    cancelled = cancelled_;
  }
  if (cancelled) {
    for (const WorkId id : ids) scheduler->Cancel(id);
  }
  FinishOne();
}

void WorkGroup::Cancel() {
  absl::InlinedVector<WorkId, 1> ids;
  Scheduler* scheduler;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    ids = ids_;
    scheduler = scheduler_;
  }
  // Outside the lock: it may call Finish. Without ids yet, Start cancels.
  for (const WorkId id : ids) scheduler->Cancel(id);
}

void WorkGroup::Finish(size_t index, absl::StatusOr<WorkResult> result) {
  results_[index] = std::move(result);
  FinishOne();
}

void WorkGroup::FinishOne() {
  // Whoever comes last sees the results of all others.
  if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    owner_->OnWorksDone();
  }
}

}  // namespace attention
