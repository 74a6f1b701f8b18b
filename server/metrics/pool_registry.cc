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
  return families;
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
  prometheus::MetricFamily family;
  family.name = "attention_memory_bytes";
  family.help =
      "Memory of a pool: handed out (in_use), kept for reuse (cached), and the "
      "most that both together may become (budget).";
  family.type = prometheus::MetricType::Gauge;
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
