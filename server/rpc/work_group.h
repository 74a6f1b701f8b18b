// The works of one request, queued together and answered together.
#ifndef ATTENTION_SERVER_RPC_WORK_GROUP_H_
#define ATTENTION_SERVER_RPC_WORK_GROUP_H_

#include <atomic>
#include <cstddef>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/engine/attention_work.h"
#include "server/rpc/work_builder.h"
#include "server/scheduling/scheduler.h"

namespace attention {

// Part of its owner, which lives until all works are done. For one use.
class WorkGroup {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    // Every work is done. Called once, on any thread, perhaps before Start has
    // returned.
    virtual void OnWorksDone() = 0;
  };

  WorkGroup() = default;
  WorkGroup(const WorkGroup&) = delete;
  WorkGroup& operator=(const WorkGroup&) = delete;

  // Queues the works, whose `done` is the group's to set. What the scheduler
  // refuses is done, with its error. None is legal.
  void Start(Scheduler* scheduler, Works works,
             const std::shared_ptr<Owner>& owner) ABSL_LOCKS_EXCLUDED(mutex_);

  // Takes what waits out of the queues. At any time; may call OnWorksDone.
  void Cancel() ABSL_LOCKS_EXCLUDED(mutex_);

  // In the order of the works; for the owner, once they are done.
  using Results = absl::InlinedVector<absl::StatusOr<WorkResult>, 1>;
  Results& results() { return results_; }

 private:
  // What `done` of one work refers to, with the owner's count of references: so
  // small that it needs no memory of its own.
  struct Slot {
    WorkGroup* group = nullptr;
    size_t index = 0;
  };

  void Finish(size_t index, absl::StatusOr<WorkResult> result);
  void FinishOne();

  Owner* owner_ = nullptr;
  absl::InlinedVector<Slot, 1> slots_;
  Results results_;
  // Start counts as one until it is over.
  std::atomic<size_t> unfinished_{1};

  absl::Mutex mutex_;
  Scheduler* scheduler_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  absl::InlinedVector<WorkId, 1> ids_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_WORK_GROUP_H_
