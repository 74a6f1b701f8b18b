// Which sessions there are, whose they are, and how long they live.
#ifndef ATTENTION_SERVER_SESSIONS_SESSION_TABLE_H_
#define ATTENTION_SERVER_SESSIONS_SESSION_TABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/sessions/kv_store.h"
#include "server/sessions/owner_account.h"
#include "server/sessions/session.h"

namespace attention {

// A session in the table. Constant, but for its time.
struct ListedSession {
  std::string id;
  std::string owner;
  std::shared_ptr<const SessionConfig> config;
  int device = 0;
  int64_t reserved_tokens = 0;
  std::shared_ptr<StoredSession> stored;
  absl::Time create_time;
  std::atomic<int64_t> ttl_nanos{0};
  std::atomic<int64_t> expiry_nanos{0};

  absl::Duration ttl() const { return absl::Nanoseconds(ttl_nanos.load()); }
  absl::Time expire_time() const {
    return absl::FromUnixNanos(expiry_nanos.load());
  }
  bool HasExpired(absl::Time now) const { return expire_time() <= now; }
  void Extend(absl::Time now) {
    expiry_nanos = absl::ToUnixNanos(now) + ttl_nanos;
  }
};

// Thread-safe.
class SessionTable {
 public:
  using Entry = std::shared_ptr<ListedSession>;

  struct Limits {
    int64_t session_count = 0;
    int64_t owner_session_count = 0;
    int64_t owner_tokens = 0;
  };

  explicit SessionTable(Limits limits) : limits_(limits) {}

  // Makes room for one more session of the owner, whose tokens count there.
  // RESOURCE_EXHAUSTED with CACHE_FULL or QUOTA_EXCEEDED.
  absl::StatusOr<std::shared_ptr<OwnerAccount>> Admit(absl::string_view owner)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // It did not come to be.
  void Dismiss(absl::string_view owner) ABSL_LOCKS_EXCLUDED(mutex_);
  // It did. Its time starts now.
  void Insert(Entry session, absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);

  // Null unless it is the owner's and lives. `extend`: for another ttl.
  Entry Find(absl::string_view owner, absl::string_view id, absl::Time now,
             bool extend) const ABSL_LOCKS_EXCLUDED(mutex_);
  // False if it is not there any more. Its pages are the caller's to give back.
  bool Remove(const ListedSession& session) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same for those whose time is over.
  std::vector<Entry> RemoveExpired(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);

  // Up to `count` of the owner's that live, by id, those after `id`.
  std::vector<Entry> List(absl::string_view owner, absl::string_view id,
                          size_t count, absl::Time now) const
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Owner {
    int64_t session_count = 0;  // those on their way included
    std::set<std::string, std::less<>> ids;
    std::shared_ptr<OwnerAccount> account;
  };

  void DismissLocked(absl::string_view owner)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool RemoveLocked(const ListedSession& session)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Limits limits_;
  mutable absl::Mutex mutex_;
  int64_t session_count_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, Entry> sessions_
      ABSL_GUARDED_BY(mutex_);  // by id
  absl::flat_hash_map<std::string, Owner> owners_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attention

#endif  // ATTENTION_SERVER_SESSIONS_SESSION_TABLE_H_
