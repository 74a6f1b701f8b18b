// The resident keys and values of one device: page pools, the page tables of
// its sessions, and the order of batches. Knows neither names nor time.
#ifndef ATTENTION_SERVER_SESSIONS_KV_STORE_H_
#define ATTENTION_SERVER_SESSIONS_KV_STORE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/engine/kv_cache.h"
#include "server/memory/memory_pool.h"
#include "server/metrics/session_metrics.h"
#include "server/metrics/session_usage.h"
#include "server/sessions/layer_pages.h"
#include "server/sessions/owner_account.h"
#include "server/sessions/page_pool.h"
#include "server/sessions/session.h"
#include "server/sessions/slab_memory.h"

namespace attention {

class KvStore;
struct StoredSession;

// A layer as steps refer to it. Keeps its session alive, not what that holds.
struct StoredLayer final : KvLayer {
  StoredLayer(StoredSession* session, PagePool* pool, const LayerShape* shape)
      : session(session), pages(pool, shape) {}

  StoredSession* const session;
  std::atomic<int64_t> length{0};  // of `pages`, for those without the lock
  // All below belongs to the store's lock.
  LayerPages pages;
  int64_t charged_tokens = 0;  // in the owner's account
};

// The pages of one session.
struct StoredSession : std::enable_shared_from_this<StoredSession> {
  KvStore* store = nullptr;
  std::shared_ptr<const SessionConfig> config;
  std::shared_ptr<OwnerAccount> account;
  LayerShape shape;
  // All below belongs to the store's lock.
  PagePool* pool = nullptr;
  std::deque<StoredLayer> layers;  // of which none moves
  bool is_closed = false;
  bool is_lost = false;
};

// Thread-safe.
class KvStore final : public KvCache, public SessionUsageSource {
 public:
  // Both outlive the store, which has at most `budget_bytes` of `pool`.
  KvStore(MemoryPool* pool, size_t budget_bytes, size_t slab_bytes,
          SessionMetrics* metrics);
  // No batch is under way, and all sessions are closed.
  ~KvStore() override;

  // An empty session, to be closed at last. Errors of SessionRegistry::Create.
  absl::StatusOr<std::shared_ptr<StoredSession>> Open(
      std::shared_ptr<const SessionConfig> config,
      std::shared_ptr<OwnerAccount> account, int64_t reserved_tokens)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // As SessionRegistry::Fork and Truncate. Wait while a batch begins: they must
  // not come between two steps of it, which share a launch.
  absl::StatusOr<std::shared_ptr<StoredSession>> Fork(
      StoredSession& origin, std::optional<int64_t> position,
      int64_t reserved_tokens) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Truncate(StoredSession& session, int64_t position)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Gives all pages back. Steps that have begun are computed, others fail.
  void Close(StoredSession& session) ABSL_LOCKS_EXCLUDED(mutex_);

  // Fills in what the store knows: lengths, tokens, bytes, whether it is lost.
  void Describe(const StoredSession& session, SessionInfo& info) const
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Of pages that are used or reserved.
  int64_t resident_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);
  SessionUsage session_usage() const override ABSL_LOCKS_EXCLUDED(mutex_);

  void BeginBatch(uint64_t number) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Begin(uint64_t number, const KvStep& step, KvView& view) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  void AllBegun(uint64_t number) override ABSL_LOCKS_EXCLUDED(mutex_);
  void EndBatch(uint64_t number, bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Sessions that a batch under way appends to, or that share such tokens.
  using AppendedTo = std::vector<std::shared_ptr<StoredSession>>;

  struct PoolOfSessions {
    std::unique_ptr<PagePool> pool;
    int64_t session_count = 0;
  };

  std::shared_ptr<StoredSession> MakeSession(
      std::shared_ptr<const SessionConfig> config,
      std::shared_ptr<OwnerAccount> account, int64_t reserved_tokens)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status BeginStep(uint64_t number, const KvStep& step, KvView& view)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes the layer have `count` more tokens, within quota and memory, and
  // frees what its window has passed for queries from `first_query` on.
  absl::Status Append(StoredLayer& layer, int64_t count, int64_t first_query,
                      std::vector<PageCopy>& copies)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CloseLocked(StoredSession& session)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ClearPages(StoredSession& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // After pages of `pool` have been released.
  void ReturnMemory(PagePool& pool) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndBeginning() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Until no batch begins.
  void AwaitBegun() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  SessionMetrics& metrics_;
  mutable absl::Mutex mutex_;
  SlabMemory memory_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<int64_t, PoolOfSessions> pools_
      ABSL_GUARDED_BY(mutex_);  // by bytes of a page
  int64_t session_count_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t resident_tokens_ ABSL_GUARDED_BY(mutex_) = 0;

  uint64_t next_batch_ ABSL_GUARDED_BY(mutex_) = 0;
  // Whether batch next_batch_ is between BeginBatch and AllBegun.
  bool beginning_ ABSL_GUARDED_BY(mutex_) = false;
  // Changes that wait for it to have begun; they come before the next one.
  int waiting_changes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Pools with pages that became free meanwhile.
  std::vector<PagePool*> holding_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, AppendedTo> batches_ ABSL_GUARDED_BY(mutex_);  // under way
};

}  // namespace attention

#endif  // ATTENTION_SERVER_SESSIONS_KV_STORE_H_
