// A KvCache of lone layers, that holds its callers to the contract.
#ifndef ATTENTION_TESTS_SUPPORT_FAKE_KV_CACHE_H_
#define ATTENTION_TESTS_SUPPORT_FAKE_KV_CACHE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "kernels/paged_params.h"
#include "server/engine/kv_cache.h"
#include "server/memory/memory_pool.h"

namespace attention::test {

// Thread-safe. Fails the test when a batch does not begin, begins twice or does
// not end, or when it is called out of order.
class FakeKvCache final : public KvCache {
 public:
  // Pages come from `pool`, which must outlive this object and its layers.
  FakeKvCache(MemoryPool* pool, PagedConfig config)
      : pool_(*pool), config_(config) {}
  ~FakeKvCache() override;

  std::shared_ptr<KvLayer> MakeLayer();
  // A layer of the same tokens, which are stored once as long as they are the
  // same. No batch may be about to begin.
  std::shared_ptr<KvLayer> Fork(const std::shared_ptr<KvLayer>& layer)
      ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t Length(const std::shared_ptr<KvLayer>& layer) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether a batch has failed that appended to it.
  bool IsLost(const std::shared_ptr<KvLayer>& layer) const
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Batches in the order in which they ended, and whether they were OK.
  std::vector<std::pair<uint64_t, bool>> ended() const
      ABSL_LOCKS_EXCLUDED(mutex_);

  void BeginBatch(uint64_t number) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Begin(uint64_t number, const KvStep& step, KvView& view) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  void AllBegun(uint64_t number) override ABSL_LOCKS_EXCLUDED(mutex_);
  void EndBatch(uint64_t number, bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Layer final : KvLayer {
    std::vector<std::shared_ptr<Block>> pages;
    int64_t length = 0;
    bool is_lost = false;
  };

  static Layer& Of(const std::shared_ptr<KvLayer>& layer) {
    return static_cast<Layer&>(*layer);
  }
  absl::Status Append(Layer& layer, int64_t tokens, KvView& view)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  MemoryPool& pool_;
  const PagedConfig config_;
  mutable absl::Mutex mutex_;
  uint64_t all_begun_ ABSL_GUARDED_BY(mutex_) = 0;  // batches
  bool has_begun_ ABSL_GUARDED_BY(mutex_) = false;  // the one after those
  // What batches that have not ended append to.
  std::map<uint64_t, std::set<std::shared_ptr<KvLayer>>> in_flight_
      ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<uint64_t, bool>> ended_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attention::test

#endif  // ATTENTION_TESTS_SUPPORT_FAKE_KV_CACHE_H_
