// The scheduler's state: what waits, in which order, and what may run next.
//
// A passive state machine without threads, clocks or devices: every decision
// that depends on time takes `now`. Not thread-safe.
//
// Works wait in one queue per tenant and head configuration: higher priority
// first, then the earlier deadline, then in order of arrival. Tenants take
// turns by the device time that they have had (server/scheduling/turns.h), and
// so do the configurations of a tenant. Whose turn it is decides the batch's
// configuration; where it has room, all tenants' works of that configuration go
// into it, each charged to its tenant.
#ifndef ATTENTION_SERVER_SCHEDULING_BATCH_QUEUES_H_
#define ATTENTION_SERVER_SCHEDULING_BATCH_QUEUES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <memory_resource>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kernels/attention_params.h"
#include "server/engine/attention_work.h"
#include "server/scheduling/cost_model.h"
#include "server/scheduling/scheduler.h"
#include "server/scheduling/turns.h"

namespace attention {

// Tensor bytes of a work, in and out: what limits and metrics count.
inline size_t TensorBytes(const AttentionWork& work) {
  return work.input_bytes() + work.result_bytes();
}

class BatchQueues {
 public:
  using Works = std::vector<std::unique_ptr<AttentionWork>>;

  // Reads the batch limits and the delay; bounds on what waits are the caller's
  // to enforce. The model must outlive this object.
  BatchQueues(const Scheduler::Options& options, const CostModel& model)
      : options_(options), model_(model) {}

  // The work's arrival_time and deadline are set, `cost` is CostOf(*work).
  // Returns ids in ascending order, from 1. O(log n).
  WorkId Push(std::unique_ptr<AttentionWork> work, const WorkCost& cost);

  // Null when the work is not queued (any more). O(log n).
  std::unique_ptr<AttentionWork> Remove(WorkId id);

  // Works whose deadline is at or before `now`, the earliest first.
  Works TakeExpired(absl::Time now);

  Works TakeAll();

  struct Taken {
    std::unique_ptr<Batch> batch;  // null when nothing is ready
    WorkCost cost;                 // of all its works
  };
  // The next batch for a device. A configuration is ready when its work fills a
  // batch, when its oldest work has waited for max_queue_delay, or when
  // `draining`. Expired work must have been taken out before. The first work is
  // taken whatever its size; others as long as they fit the limits beside it,
  // so a work larger than a limit runs alone.
  Taken TakeBatch(size_t device, absl::Time now, bool draining);

  // When the first deadline passes; InfiniteFuture when there is none.
  absl::Time EarliestDeadline() const;

  // When TakeBatch will return a batch even if nothing more arrives;
  // InfiniteFuture when nothing is queued. Linear in the number of
  // configurations queued.
  absl::Time EarliestReady(size_t device) const;

  size_t size() const { return by_id_.size(); }
  size_t bytes() const { return bytes_; }

  // Time that the device would take for everything in the fewest batches.
  absl::Duration Predicted(size_t device) const;

  // What would run before `work`, or in the batch with it, for certain: the works
  // of its tenant and configuration that come before it. Linear in the number of
  // those behind.
  WorkCost CostAhead(const AttentionWork& work) const;

 private:
  struct Tenant;
  struct Flow;

  // All works of one configuration.
  struct Queue {
    size_t count = 0;
    size_t bytes = 0;
    int64_t tokens = 0;
    WorkCost cost;
    // Only kept while max_queue_delay needs it.
    absl::btree_set<std::pair<absl::Time, WorkId>> arrivals;
  };

  struct Order {
    int32_t priority;
    absl::Time deadline;
    WorkId id;

    bool operator<(const Order& other) const {
      if (priority != other.priority) return priority > other.priority;
      if (deadline != other.deadline) return deadline < other.deadline;
      return id < other.id;
    }
  };
  struct Entry {
    std::unique_ptr<AttentionWork> work;
    size_t bytes;
    int64_t tokens;
    WorkCost cost;
  };
  using Entries = std::map<Order, Entry>;

  // Works of one tenant and configuration. Kept while it owes.
  struct Flow {
    Tenant* tenant;
    HeadConfig config;
    Debt debt;
    Entries entries;
    Queue* queue = nullptr;  // while there are entries
    WorkCost cost;           // of all entries

    bool empty() const { return entries.empty(); }
  };

  struct Tenant {
    std::string name;
    Debt debt;
    size_t count = 0;
    std::list<Flow> flows;  // whose turn is next comes first
    absl::flat_hash_map<HeadConfig, std::list<Flow>::iterator> by_config;

    bool empty() const { return count == 0; }
  };

  // What waits of a cost class.
  struct ClassLoad {
    WorkCost cost;
    size_t works = 0;
    size_t queues = 0;
  };

  struct Place {
    Flow* flow;
    Entries::iterator entry;
  };

  Tenant& TenantOf(absl::string_view name);
  Flow& FlowOf(Tenant& tenant, const HeadConfig& config);
  // Null when nothing of that tenant and configuration waits or owes.
  const Flow* FindFlow(const AttentionWork& work) const;
  void EraseTenant(std::list<Tenant>::iterator tenant);
  void EraseFlow(std::list<Flow>::iterator flow);
  // Whose turn it is; null when no flow is ready. First in both lines, if no
  // flow ahead is held back.
  Flow* NextFlow(size_t device, absl::Time now, bool draining);
  // The flows of a configuration, the leader first, the others in turn.
  std::vector<Flow*> FlowsBeside(Flow& leader);
  void FillBatch(size_t device, Flow& leader, Taken& taken);

  bool FillsBatch(const Queue& queue, const HeadConfig& config,
                  size_t device) const;
  absl::Time ReadyTime(const Queue& queue, const HeadConfig& config,
                       size_t device) const;
  // Removes the entry everywhere. Its flow stays.
  std::unique_ptr<AttentionWork> Extract(Flow& flow, Entries::iterator entry);
  // Once nothing waits, nobody owes anything.
  void ForgetIfEmpty();

  const Scheduler::Options options_;
  const CostModel& model_;
  WorkId last_id_ = 0;
  size_t bytes_ = 0;
  std::list<Tenant> tenants_;  // whose turn is next comes first
  absl::flat_hash_map<std::string, std::list<Tenant>::iterator> by_tenant_;
  absl::flat_hash_map<HeadConfig, std::unique_ptr<Queue>> by_config_;
  absl::flat_hash_map<WorkId, Place> by_id_;
  absl::btree_set<std::pair<absl::Time, WorkId>> deadlines_;  // finite ones
  std::array<ClassLoad, kCostClassCount> loads_;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_SCHEDULING_BATCH_QUEUES_H_
