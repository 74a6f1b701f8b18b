// The scheduler's state: what waits, in which order, and what may run next.
//
// A passive state machine without threads, clocks or devices: every decision
// that depends on time takes `now`. Not thread-safe.
//
// Works wait in one queue per tenant and kind, which is their head
// configuration, the device that they require, if any, and the pages of keys
// and values that they use, if they are resident: higher priority first, then
// the earlier deadline unless they are resident, then in order of arrival.
// Tenants take turns by the device time that they have had
// (server/scheduling/turns.h), and so do the kinds of a tenant. Whose turn it
// is, of those that the device may compute, decides the batch's kind; where it
// has room, all tenants' works of that kind go into it, each charged to its
// tenant.
//
// So resident works of one session, which are of one tenant and kind, keep
// their order of arrival if their priorities are equal, within a batch and over
// the batches of their device, which are numbered for KvCache as they are
// taken. (No two deadlines that come over the wire are equal.)
#ifndef ATTENTION_SERVER_SCHEDULING_BATCH_QUEUES_H_
#define ATTENTION_SERVER_SCHEDULING_BATCH_QUEUES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <memory_resource>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/engine/attention_work.h"
#include "server/scheduling/cost_model.h"
#include "server/scheduling/scheduler.h"
#include "server/scheduling/waiting_works.h"
#include "server/scheduling/work_kind.h"

namespace attention {

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

  // Works that no other device may compute.
  Works TakeRequiring(size_t device);

  Works TakeAll();

  struct Taken {
    std::unique_ptr<Batch> batch;  // null when nothing is ready
    WorkCost cost;                 // of all its works
  };
  // The next batch for a device. A kind is ready when its work fills a batch,
  // when its oldest work has waited for max_queue_delay, or when `draining`.
  // Expired work must have been taken out before. The first work is taken
  // whatever its size; others as long as they fit the limits beside it, so a
  // work larger than a limit runs alone.
  Taken TakeBatch(size_t device, absl::Time now, bool draining);

  // When the first deadline passes; InfiniteFuture when there is none.
  absl::Time EarliestDeadline() const;

  // When TakeBatch will return a batch even if nothing more arrives;
  // InfiniteFuture when nothing is queued for the device. Linear in the number
  // of kinds queued.
  absl::Time EarliestReady(size_t device) const;

  size_t size() const { return by_id_.size(); }
  size_t bytes() const { return bytes_; }

  // Time that the device would take, in the fewest batches, for everything that
  // requires `required_device`: itself, or kAnyDevice for what requires none.
  absl::Duration Predicted(size_t device, int required_device) const;

  // What would run before `work`, or in the batch with it, for certain: the
  // works of its tenant and kind that come before it. Linear in the number of
  // those behind.
  WorkCost CostAhead(const AttentionWork& work) const;

 private:
  using Tenant = waiting::Tenant;
  using Flow = waiting::Flow;
  using Queue = waiting::Queue;
  using Order = waiting::Order;
  using Entry = waiting::Entry;
  using Entries = waiting::Entries;
  template <typename T>
  using ByKind = waiting::ByKind<T>;

  // What waits of a cost class.
  struct ClassLoad {
    WorkCost cost;
    size_t works = 0;
    size_t queues = 0;
  };
  using Load = std::array<ClassLoad, kCostClassCount>;

  struct Place {
    Flow* flow;
    Entries::iterator entry;
  };

  // Whose turns the work of that kind is to wait for.
  Tenant& TenantOf(absl::string_view name, const WorkKind& kind);
  // Whether it has to share turns, as resident works of the tenant still do:
  // otherwise it could overtake them.
  bool FollowsOthers(absl::string_view name, const WorkKind& kind) const;
  Flow& FlowOf(Tenant& tenant, const WorkKind& kind);
  // Null when nothing of that tenant and kind waits or owes.
  const Flow* FindFlow(const AttentionWork& work) const;
  void EraseTenant(std::pmr::list<Tenant>::iterator tenant);
  void EraseFlow(std::pmr::list<Flow>::iterator flow);
  // Whose turn it is; null when no flow is ready. First in both lines, if no
  // flow ahead is held back.
  Flow* NextFlow(size_t device, absl::Time now, bool draining);
  // Calls visit(flow) for the flows of a kind, the leader first, the others in
  // turn.
  template <typename Visit>
  void ForEachBeside(Flow& leader, Visit visit);
  void FillBatch(size_t device, Flow& leader, Taken& taken);

  ClassLoad& LoadOf(const WorkKind& kind) {
    return loads_[kind.required_device][kind.cost_class()];
  }

  bool FillsBatch(const Queue& queue, const WorkKind& kind,
                  size_t device) const;
  // InfiniteFuture on a device that may not compute the kind.
  absl::Time ReadyTime(const Queue& queue, const WorkKind& kind,
                       size_t device) const;
  // Removes the entry everywhere. Its flow stays.
  std::unique_ptr<AttentionWork> Extract(Flow& flow, Entries::iterator entry);
  // Once nothing waits, nobody owes anything.
  void ForgetIfEmpty();

  const Scheduler::Options options_;
  const CostModel& model_;
  WorkId last_id_ = 0;
  size_t bytes_ = 0;
  std::pmr::unsynchronized_pool_resource nodes_;
  std::pmr::list<Tenant> tenants_{&nodes_};  // whose turn is next comes first
  absl::flat_hash_map<std::string, std::pmr::list<Tenant>::iterator> by_tenant_;
  ByKind<Queue> by_kind_{&nodes_};
  absl::flat_hash_map<WorkId, Place> by_id_;
  std::pmr::set<std::pair<absl::Time, WorkId>> deadlines_{&nodes_};  // finite
  absl::flat_hash_map<int, Load> loads_;                   // by required device
  absl::flat_hash_map<size_t, uint64_t> kv_batch_counts_;  // by device
};

}  // namespace attention

#endif  // ATTENTION_SERVER_SCHEDULING_BATCH_QUEUES_H_
