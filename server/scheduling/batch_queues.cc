#include "server/scheduling/batch_queues.h"

#include <algorithm>
#include <tuple>

#include "absl/container/inlined_vector.h"

namespace attention {
namespace {

// Shared by the tenants beyond max_tenants. Not a name that a caller can send.
constexpr char kOtherTenants[] = "\n";

template <typename T>
bool Fits(T used, T more, T limit) {
  return used <= limit && more <= limit - used;
}

}  // namespace

WorkId BatchQueues::Push(std::unique_ptr<AttentionWork> work,
                         const WorkCost& cost) {
  const WorkId id = ++last_id_;
  const WorkKind kind = KindOf(*work);
  Flow& flow = FlowOf(TenantOf(work->tenant, kind), kind);
  ClassLoad& load = LoadOf(kind);
  const auto [queue_it, is_new] = by_kind_.try_emplace(kind);
  Queue* const queue = &queue_it->second;
  if (is_new) ++load.queues;

  const Order order(*work, id);
  const size_t bytes = work->moved_bytes();
  const int64_t tokens = work->query_tokens();
  if (options_.max_queue_delay > absl::ZeroDuration()) {
    queue->arrivals.emplace(work->arrival_time, id);
  }
  if (work->deadline != absl::InfiniteFuture()) {
    deadlines_.emplace(work->deadline, id);
  }
  // Most go to the end.
  const auto entry =
      flow.entries.emplace_hint(flow.entries.end(), order,
                                Entry{std::move(work), bytes, tokens, cost});
  by_id_.emplace(id, Place{&flow, entry});
  flow.queue = queue;
  flow.cost += cost;
  ++flow.tenant->count;
  ++queue->count;
  queue->bytes += bytes;
  queue->tokens += tokens;
  queue->cost += cost;
  load.cost += cost;
  ++load.works;
  bytes_ += bytes;
  return id;
}

BatchQueues::Tenant& BatchQueues::TenantOf(absl::string_view name,
                                           const WorkKind& kind) {
  if (FollowsOthers(name, kind)) name = kOtherTenants;
  auto it = by_tenant_.find(name);
  if (it == by_tenant_.end() &&
      tenants_.size() >= static_cast<size_t>(options_.max_tenants)) {
    const auto idle = std::find_if(tenants_.begin(), tenants_.end(),
                                   [](const Tenant& t) { return t.empty(); });
    if (idle != tenants_.end()) {
      EraseTenant(idle);
    } else {
      name = kOtherTenants;
      it = by_tenant_.find(name);
    }
  }
  if (it == by_tenant_.end()) {
    const auto tenant = tenants_.emplace(tenants_.end());
    tenant->name = std::string(name);
    it = by_tenant_.emplace(tenant->name, tenant).first;
  }
  return *it->second;
}

bool BatchQueues::FollowsOthers(absl::string_view name,
                                const WorkKind& kind) const {
  if (!kind.is_resident()) return false;
  const auto others = by_tenant_.find(kOtherTenants);
  if (others == by_tenant_.end()) return false;
  const auto flow = others->second->by_kind.find(kind);
  if (flow == others->second->by_kind.end()) return false;
  const Entries& entries = flow->second->entries;
  return std::any_of(entries.begin(), entries.end(), [name](const auto& entry) {
    return entry.second.work->tenant == name;
  });
}

BatchQueues::Flow& BatchQueues::FlowOf(Tenant& tenant, const WorkKind& kind) {
  const auto [it, is_new] = tenant.by_kind.try_emplace(kind);
  if (is_new) {
    it->second = tenant.flows.emplace(tenant.flows.end());
    it->second->tenant = &tenant;
    it->second->kind = kind;
  }
  return *it->second;
}

const BatchQueues::Flow* BatchQueues::FindFlow(
    const AttentionWork& work) const {
  auto tenant = by_tenant_.find(work.tenant);
  if (tenant == by_tenant_.end()) return nullptr;
  const auto& flows = tenant->second->by_kind;
  const auto flow = flows.find(KindOf(work));
  return flow == flows.end() ? nullptr : &*flow->second;
}

void BatchQueues::EraseTenant(std::pmr::list<Tenant>::iterator tenant) {
  by_tenant_.erase(tenant->name);
  tenants_.erase(tenant);
}

void BatchQueues::EraseFlow(std::pmr::list<Flow>::iterator flow) {
  Tenant& tenant = *flow->tenant;
  tenant.by_kind.erase(flow->kind);
  tenant.flows.erase(flow);
}

void BatchQueues::ForgetIfEmpty() {
  if (!by_id_.empty()) return;
  by_tenant_.clear();
  tenants_.clear();
  bytes_ = 0;
  loads_.clear();  // also of what rounding has left
}

std::unique_ptr<AttentionWork> BatchQueues::Extract(Flow& flow,
                                                    Entries::iterator it) {
  const WorkId id = it->first.id;
  Entry entry = std::move(it->second);
  flow.entries.erase(it);
  flow.cost -= entry.cost;
  if (flow.empty()) flow.cost = {};
  --flow.tenant->count;
  by_id_.erase(id);
  deadlines_.erase({entry.work->deadline, id});
  bytes_ -= entry.bytes;

  Queue& queue = *flow.queue;
  ClassLoad& load = LoadOf(flow.kind);
  queue.arrivals.erase({entry.work->arrival_time, id});
  queue.bytes -= entry.bytes;
  queue.tokens -= entry.tokens;
  queue.cost -= entry.cost;
  load.cost -= entry.cost;
  --load.works;
  if (--queue.count == 0) {
    by_kind_.erase(flow.kind);
    --load.queues;
  }
  return std::move(entry.work);
}

std::unique_ptr<AttentionWork> BatchQueues::Remove(WorkId id) {
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return nullptr;
  Flow& flow = *it->second.flow;
  Tenant& tenant = *flow.tenant;
  std::unique_ptr<AttentionWork> work = Extract(flow, it->second.entry);
  if (flow.empty() && flow.debt.is_paid()) {
    EraseFlow(tenant.by_kind.find(flow.kind)->second);
  }
  if (tenant.empty() && tenant.debt.is_paid()) {
    EraseTenant(by_tenant_.find(tenant.name)->second);
  }
  ForgetIfEmpty();
  return work;
}

BatchQueues::Works BatchQueues::TakeExpired(absl::Time now) {
  Works expired;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    expired.push_back(Remove(deadlines_.begin()->second));
  }
  return expired;
}

BatchQueues::Works BatchQueues::TakeRequiring(size_t device) {
  if (!loads_.contains(static_cast<int>(device))) return {};
  std::vector<WorkId> ids;
  for (const Tenant& tenant : tenants_) {
    for (const Flow& flow : tenant.flows) {
      if (flow.kind.required_device != static_cast<int>(device)) continue;
      for (const auto& [order, entry] : flow.entries) ids.push_back(order.id);
    }
  }
  Works works;
  for (WorkId id : ids) works.push_back(Remove(id));
  return works;
}

BatchQueues::Works BatchQueues::TakeAll() {
  Works works;
  works.reserve(size());
  while (!by_id_.empty()) works.push_back(Remove(by_id_.begin()->first));
  return works;
}

bool BatchQueues::FillsBatch(const Queue& queue, const WorkKind& kind,
                             size_t device) const {
  if (queue.count >= static_cast<size_t>(options_.max_batch_requests) ||
      queue.bytes >= options_.max_batch_bytes ||
      queue.tokens >= options_.max_batch_tokens) {
    return true;
  }
  if (options_.max_batch_time == absl::ZeroDuration()) return false;
  const size_t cost_class = kind.cost_class();
  return model_.Launch(device, cost_class) +
             model_.Added(device, cost_class, queue.cost) >=
         options_.max_batch_time;
}

absl::Time BatchQueues::ReadyTime(const Queue& queue, const WorkKind& kind,
                                  size_t device) const {
  if (!kind.MayRunOn(device)) return absl::InfiniteFuture();
  if (options_.max_queue_delay == absl::ZeroDuration() ||
      FillsBatch(queue, kind, device)) {
    return absl::InfinitePast();
  }
  return queue.arrivals.begin()->first + options_.max_queue_delay;
}

BatchQueues::Flow* BatchQueues::NextFlow(size_t device, absl::Time now,
                                         bool draining) {
  const auto flow_ready = [&](const Flow& flow) {
    return draining ? flow.kind.MayRunOn(device)
                    : ReadyTime(*flow.queue, flow.kind, device) <= now;
  };
  const auto tenant_ready = [&](const Tenant& tenant) {
    return std::any_of(
        tenant.flows.begin(), tenant.flows.end(),
        [&](const Flow& f) { return !f.empty() && flow_ready(f); });
  };
  const auto tenant = NextTurn(tenants_, tenant_ready,
                               [this](auto it) { EraseTenant(it); });
  if (tenant == tenants_.end()) return nullptr;
  const auto flow = NextTurn(tenant->flows, flow_ready,
                             [this](auto it) { EraseFlow(it); });
  // Their turns end here.
  tenants_.splice(tenants_.end(), tenants_, tenant);
  tenant->flows.splice(tenant->flows.end(), tenant->flows, flow);
  return &*flow;
}

template <typename Visit>
void BatchQueues::ForEachBeside(Flow& leader, Visit visit) {
  visit(leader);
  if (leader.queue->count == leader.entries.size()) return;
  for (Tenant& tenant : tenants_) {
    if (&tenant == leader.tenant) continue;
    const auto it = tenant.by_kind.find(leader.kind);
    if (it != tenant.by_kind.end() && !it->second->empty()) {
      visit(*it->second);
    }
  }
}

void BatchQueues::FillBatch(size_t device, Flow& leader, Taken& taken) {
  struct Share {
    Flow* flow;
    bool is_full = false;  // nothing more of it fits, or waits
    bool owes = false;
    absl::Duration time;  // of its works in this batch
    int64_t works = 0;
  };
  absl::InlinedVector<Share, 4> shares;
  ForEachBeside(leader, [&](Flow& flow) {
    const bool owes = &flow != &leader && !flow.tenant->debt.is_paid();
    shares.push_back({.flow = &flow, .owes = owes});
  });
  const size_t cost_class = leader.kind.cost_class();
  const absl::Duration launch = model_.Launch(device, cost_class);
  const absl::Duration max_time =
      options_.max_batch_time == absl::ZeroDuration()
          ? absl::InfiniteDuration()
          : options_.max_batch_time;
  size_t bytes = 0;
  int64_t tokens = 0;
  absl::Duration time = launch;
  BatchQueues::Works& works = taken.batch->works;
  works.reserve(std::min(leader.queue->count,
                         static_cast<size_t>(options_.max_batch_requests)));

  // Who owes nothing comes before who does, then who has least of the batch.
  const auto later = [](const Share& a, const Share& b) {
    return std::tuple(a.is_full, a.owes, a.time, a.works) <
           std::tuple(b.is_full, b.owes, b.time, b.works);
  };
  while (works.size() < static_cast<size_t>(options_.max_batch_requests)) {
    const auto share = std::min_element(shares.begin(), shares.end(), later);
    if (share->is_full) break;
    Flow& flow = *share->flow;
    bool more = !flow.empty();
    if (more) {
      const Entry& entry = flow.entries.begin()->second;
      const absl::Duration added = model_.Added(device, cost_class, entry.cost);
      more = works.empty() ||
             (Fits(bytes, entry.bytes, options_.max_batch_bytes) &&
              Fits(tokens, entry.tokens, options_.max_batch_tokens) &&
              time + added <= max_time);
      if (more) {
        bytes += entry.bytes;
        tokens += entry.tokens;
        time += added;
        taken.cost += entry.cost;
        share->time += added;
        ++share->works;
        works.push_back(Extract(flow, flow.entries.begin()));
      }
    }
    share->is_full = !more;
  }
  for (const Share& share : shares) {
    // The launch is everybody's, by works.
    const absl::Duration charge =
        share.time + launch * share.works / static_cast<int64_t>(works.size());
    share.flow->debt.Add(charge);
    share.flow->tenant->debt.Add(charge);
  }
}

BatchQueues::Taken BatchQueues::TakeBatch(size_t device, absl::Time now,
                                          bool draining) {
  Taken taken;
  Flow* const leader = NextFlow(device, now, draining);
  if (leader == nullptr) return taken;
  taken.batch = std::make_unique<Batch>();
  Batch& batch = *taken.batch;
  batch.config = leader->kind.config;
  batch.start_time = now;
  if (leader->kind.is_resident()) {
    batch.kv_batch_number = kv_batch_counts_[device]++;
  }
  if (FillsBatch(*leader->queue, leader->kind, device)) {
    batch.flush_reason = FlushReason::kFull;
  } else if (draining) {
    batch.flush_reason = FlushReason::kDrain;
  } else if (options_.max_queue_delay > absl::ZeroDuration()) {
    batch.flush_reason = FlushReason::kDelay;
  } else {
    batch.flush_reason = FlushReason::kIdle;
  }
  FillBatch(device, *leader, taken);
  ForgetIfEmpty();
  return taken;
}

absl::Time BatchQueues::EarliestDeadline() const {
  return deadlines_.empty() ? absl::InfiniteFuture()
                            : deadlines_.begin()->first;
}

absl::Time BatchQueues::EarliestReady(size_t device) const {
  absl::Time earliest = absl::InfiniteFuture();
  for (const auto& [kind, queue] : by_kind_) {
    earliest = std::min(earliest, ReadyTime(queue, kind, device));
  }
  return earliest;
}

absl::Duration BatchQueues::Predicted(size_t device,
                                      int required_device) const {
  absl::Duration predicted;
  const auto it = loads_.find(required_device);
  if (it == loads_.end()) return predicted;
  for (size_t i = 0; i < kCostClassCount; ++i) {
    const ClassLoad& load = it->second[i];
    if (load.queues == 0) continue;
    const size_t batches =
        std::max(load.queues, load.works / options_.max_batch_requests);
    predicted += model_.Launch(device, i) * static_cast<int64_t>(batches) +
                 model_.Added(device, i, load.cost);
  }
  return predicted;
}

WorkCost BatchQueues::CostAhead(const AttentionWork& work) const {
  const Flow* flow = FindFlow(work);
  if (flow == nullptr) return {};
  WorkCost ahead = flow->cost;
  const Order order(work, last_id_ + 1);
  for (auto it = flow->entries.rbegin();
       it != flow->entries.rend() && order < it->first; ++it) {
    ahead -= it->second.cost;
  }
  return ahead;
}

}  // namespace attention
