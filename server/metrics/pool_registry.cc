#include "server/metrics/pool_registry.h"

#include <map>
#include <utility>

namespace attention {
namespace {

prometheus::ClientMetric MakeGauge(const std::string& pool,
                                   const std::string& device, const char* state,
                                   size_t bytes) {
  prometheus::ClientMetric metric;
  metric.label = {{"pool", pool}, {"device", device}, {"state", state}};
  metric.gauge.value = static_cast<double>(bytes);
  return metric;
}

prometheus::MetricFamily MakeFamily(const char* name, const char* help) {
  return {.name = name, .help = help, .type = prometheus::MetricType::Gauge};
}

// `state` may be null.
void AddGauge(const std::string& device, const char* state, int64_t value,
              prometheus::MetricFamily& family) {
  prometheus::ClientMetric metric;
  metric.label = {{"device", device}};
  if (state != nullptr) metric.label.push_back({"state", state});
  metric.gauge.value = static_cast<double>(value);
  family.metric.push_back(std::move(metric));
}

void AddPages(const std::string& device, const SessionUsage::Pages& pages,
              prometheus::MetricFamily& family) {
  AddGauge(device, "used", pages.used, family);
  AddGauge(device, "shared", pages.shared, family);
  AddGauge(device, "reserved", pages.reserved, family);
  AddGauge(device, "free", pages.free, family);
  AddGauge(device, "spilled", pages.spilled, family);
}

}  // namespace

void PoolRegistry::AddPool(const MemoryPool* pool, absl::string_view device) {
  absl::MutexLock lock(&mutex_);
  pools_.emplace_back(pool, device);
}

void PoolRegistry::RemovePool(const MemoryPool* pool) {
  absl::MutexLock lock(&mutex_);
  std::erase_if(pools_, [&](const auto& entry) { return entry.first == pool; });
}

std::vector<prometheus::MetricFamily> PoolRegistry::Collect() const {
  std::vector<prometheus::MetricFamily> families = Registry::Collect();
  prometheus::MetricFamily pools = CollectPools();
  if (!pools.metric.empty()) families.push_back(std::move(pools));
  for (prometheus::MetricFamily& family : CollectSessions()) {
    families.push_back(std::move(family));
  }
  return families;
}

void PoolRegistry::AddSessions(const SessionUsageSource* sessions,
                               absl::string_view device) {
  absl::MutexLock lock(&mutex_);
  sessions_.emplace_back(sessions, device);
}

void PoolRegistry::RemoveSessions(const SessionUsageSource* sessions) {
  absl::MutexLock lock(&mutex_);
  std::erase_if(sessions_,
                [&](const auto& entry) { return entry.first == sessions; });
}

std::vector<prometheus::MetricFamily> PoolRegistry::CollectSessions() const {
  prometheus::MetricFamily count =
      MakeFamily("attention_sessions", "Sessions that there are.");
  prometheus::MetricFamily tokens =
      MakeFamily("attention_session_resident_tokens",
                 "Tokens whose keys and values are resident, per layer; those "
                 "that sessions share count for each.");
  prometheus::MetricFamily pages = MakeFamily(
      "attention_session_pages",
      "Pages of keys and values: with tokens (used), with those of several "
      "sessions (shared), empty but promised to a session (reserved), empty "
      "(free), and with tokens but in the host's memory (spilled).");
  prometheus::MetricFamily bytes = MakeFamily(
      "attention_session_page_bytes",
      "Bytes of these pages, and the most that all may have (budget), and in "
      "the host's memory (spill_budget).");
  absl::MutexLock lock(&mutex_);
  if (sessions_.empty()) return {};
  for (const auto& [sessions, device] : sessions_) {
    const SessionUsage usage = sessions->session_usage();
    AddGauge(device, nullptr, usage.session_count, count);
    AddGauge(device, nullptr, usage.resident_tokens, tokens);
    AddPages(device, usage.page_count, pages);
    AddPages(device, usage.page_bytes, bytes);
    AddGauge(device, "budget", usage.budget_bytes, bytes);
    AddGauge(device, "spill_budget", usage.spill_budget_bytes, bytes);
  }
  return {std::move(count), std::move(tokens), std::move(pages),
          std::move(bytes)};
}

prometheus::MetricFamily PoolRegistry::CollectPools() const {
  // Pools of the same name and device are added up: Prometheus rejects a whole
  // scrape that has a series twice.
  std::map<std::pair<std::string, std::string>, MemoryPool::Usage> usages;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [pool, device] : pools_) {
      const MemoryPool::Usage usage = pool->usage();
      MemoryPool::Usage& sum = usages[{pool->name(), device}];
      sum.in_use_bytes += usage.in_use_bytes;
      sum.cached_bytes += usage.cached_bytes;
      sum.budget_bytes += usage.budget_bytes;
    }
  }
  prometheus::MetricFamily family = MakeFamily(
      "attention_memory_bytes",
      "Memory of a pool: handed out (in_use), kept for reuse (cached), and the "
      "most that both together may become (budget).");
  for (const auto& [labels, usage] : usages) {
    const auto& [pool, device] = labels;
    family.metric.push_back(
        MakeGauge(pool, device, "in_use", usage.in_use_bytes));
    family.metric.push_back(
        MakeGauge(pool, device, "cached", usage.cached_bytes));
    family.metric.push_back(
        MakeGauge(pool, device, "budget", usage.budget_bytes));
  }
  return family;
}

}  // namespace attention
