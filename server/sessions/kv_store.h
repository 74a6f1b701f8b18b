// The resident keys and values of one device: page pools, the page tables of
// its sessions, and the order of batches. Knows neither names nor time.
//
// With memory of the host to spill to, sessions without a reservation make room
// for others: layers of those unused for longest are put aside, and as many of
// their pages leave the device as others need frames (PagePool). A step on such
// a layer brings all of its pages back.
#ifndef ATTENTION_SERVER_SESSIONS_KV_STORE_H_
#define ATTENTION_SERVER_SESSIONS_KV_STORE_H_

#include <cstddef>
#include <cstdint>
#include <list>
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
#include "server/sessions/owner_account.h"
#include "server/sessions/page_pool.h"
#include "server/sessions/session.h"
#include "server/sessions/slab_memory.h"
#include "server/sessions/stored_session.h"

namespace attention {

// Thread-safe.
class KvStore final : public KvCache, public SessionUsageSource {
 public:
  struct Memory {
    MemoryPool* pool = nullptr;        // outlives the store, as the other
    size_t budget_bytes = 0;           // at most so many of it
    MemoryPool* spill_pool = nullptr;  // the host's; null: nothing is spilled
    size_t spill_budget_bytes = 0;
  };

  KvStore(const Memory& memory, size_t slab_bytes, SessionMetrics* metrics);
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

  // Of pages that are used or reserved, on the device or on the host.
  int64_t resident_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);
  SessionUsage session_usage() const override ABSL_LOCKS_EXCLUDED(mutex_);

  void BeginBatch(uint64_t number) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Begin(uint64_t number, const KvStep& step, KvView& view) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Move(
      absl::FunctionRef<absl::Status(absl::Span<const PageMove>)> move) override
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
  // Promises frames, `restored` of them for spilled pages that are restored
  // next. Where there are too few, other sessions make room.
  absl::Status Reserve(PagePool& pool, int64_t count, int64_t restored = 0)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The same with slabs of other pools, whose sessions make room.
  bool GetSlabs(const PagePool& pool, int64_t count)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Layers of the session, until the pool has so many idle pages.
  void PutAside(StoredSession& session, int64_t idle_count)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Has the layer's pages on the device, and promises for so many tokens more.
  absl::Status Wake(StoredLayer& layer, int64_t append_length)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CountRestored(StoredSession& session, int64_t page_count)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // It is the last that has to make room from now on.
  void Touch(StoredSession& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Lose(StoredSession& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CloseLocked(StoredSession& session)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ClearPages(StoredSession& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // After pages of `pool` have been released.
  void ReturnMemory(PagePool& pool) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // To the pools, unless the device may still use it.
  void ReleaseSpare() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndBeginning() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Until no batch begins.
  void AwaitBegun() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  SessionMetrics& metrics_;
  mutable absl::Mutex mutex_;
  SlabMemory memory_ ABSL_GUARDED_BY(mutex_);
  std::optional<SlabMemory> spill_memory_ ABSL_GUARDED_BY(mutex_);
  std::vector<PageMove> moves_ ABSL_GUARDED_BY(mutex_);  // before next launch
  absl::flat_hash_map<int64_t, PoolOfSessions> pools_
      ABSL_GUARDED_BY(mutex_);  // by bytes of a page
  int64_t session_count_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t resident_tokens_ ABSL_GUARDED_BY(mutex_) = 0;

  // With memory to spill to: sessions that may have to make room, the one
  // unused for longest first, and those that have nothing to give.
  std::list<StoredSession*> awake_ ABSL_GUARDED_BY(mutex_);
  std::list<StoredSession*> asleep_ ABSL_GUARDED_BY(mutex_);

  uint64_t next_batch_ ABSL_GUARDED_BY(mutex_) = 0;
  // That is being put together, or the next one: what its steps use stays.
  uint64_t launch_ ABSL_GUARDED_BY(mutex_) = 1;
  bool launch_has_steps_ ABSL_GUARDED_BY(mutex_) = false;
  // Whether Reserve has failed for that.
  bool lacks_idle_pages_ ABSL_GUARDED_BY(mutex_) = false;
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
