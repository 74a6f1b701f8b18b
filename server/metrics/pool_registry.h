// A registry that also exports memory pools and what sessions hold, read at the
// time of a scrape.
#ifndef ATTENTION_SERVER_METRICS_POOL_REGISTRY_H_
#define ATTENTION_SERVER_METRICS_POOL_REGISTRY_H_

#include <prometheus/metric_family.h>
#include <prometheus/registry.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/memory/memory_pool.h"
#include "server/metrics/session_usage.h"

namespace attention {

// Adds the family attention_memory_bytes{pool,device,state} and those of
// sessions to the registered ones. Pools and sessions count for themselves, so
// nothing has to be reported on the path of a request. Thread-safe.
class PoolRegistry final : public prometheus::Registry {
 public:
  void AddPool(const MemoryPool* pool, absl::string_view device);
  // Afterwards the pool is not read any more; waits for a scrape that does.
  void RemovePool(const MemoryPool* pool);

  void AddSessions(const SessionUsageSource* sessions,
                   absl::string_view device);
  // As RemovePool.
  void RemoveSessions(const SessionUsageSource* sessions);

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  prometheus::MetricFamily CollectPools() const;
  std::vector<prometheus::MetricFamily> CollectSessions() const;

  mutable absl::Mutex mutex_;
  // With the device's name.
  std::vector<std::pair<const MemoryPool*, std::string>> pools_
      ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<const SessionUsageSource*, std::string>> sessions_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace attention

#endif  // ATTENTION_SERVER_METRICS_POOL_REGISTRY_H_
