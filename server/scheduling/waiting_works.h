// How works wait: in the order of each tenant's works of a kind, and in the
// turns of the tenants and of their kinds (server/scheduling/batch_queues.h).
#ifndef ATTENTION_SERVER_SCHEDULING_WAITING_WORKS_H_
#define ATTENTION_SERVER_SCHEDULING_WAITING_WORKS_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <memory_resource>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/time/time.h"
#include "server/engine/attention_work.h"
#include "server/scheduling/cost_model.h"
#include "server/scheduling/scheduler.h"
#include "server/scheduling/turns.h"
#include "server/scheduling/work_kind.h"

namespace attention::waiting {

struct Tenant;

// Queues and their entries come and go with every request: their nodes come
// from a pool instead of the heap.
using Nodes = std::pmr::polymorphic_allocator<>;
template <typename T>
using ByKind = std::pmr::unordered_map<WorkKind, T, absl::Hash<WorkKind>>;

// All works of one kind.
struct Queue {
  using allocator_type = Nodes;
  explicit Queue(const Nodes& nodes) : arrivals(nodes) {}

  size_t count = 0;
  size_t bytes = 0;
  int64_t tokens = 0;
  WorkCost cost;
  // Only kept while max_queue_delay needs it.
  std::pmr::set<std::pair<absl::Time, WorkId>> arrivals;
};

// Of the works of a tenant and kind: what is less comes first.
struct Order {
  Order(const AttentionWork& work, WorkId work_id)
      : priority(work.priority),
        deadline(work.is_resident() ? absl::InfiniteFuture() : work.deadline),
        id(work_id) {}

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
using Entries = std::pmr::map<Order, Entry>;

// Works of one tenant and kind. Kept while it owes.
struct Flow {
  using allocator_type = Nodes;
  explicit Flow(const Nodes& nodes) : entries(nodes) {}

  Tenant* tenant = nullptr;
  WorkKind kind;
  Debt debt;
  Entries entries;
  Queue* queue = nullptr;  // while there are entries
  WorkCost cost;           // of all entries

  bool empty() const { return entries.empty(); }
};

// All works of one tenant.
struct Tenant {
  using allocator_type = Nodes;
  explicit Tenant(const Nodes& nodes) : flows(nodes), by_kind(nodes) {}

  std::string name;
  Debt debt;
  size_t count = 0;
  std::pmr::list<Flow> flows;  // whose turn is next comes first
  ByKind<std::pmr::list<Flow>::iterator> by_kind;

  bool empty() const { return count == 0; }
};

}  // namespace attention::waiting

#endif  // ATTENTION_SERVER_SCHEDULING_WAITING_WORKS_H_
