// The sessions of a server: whose they are, how long they live, what they may
// hold, and the resident keys and values of each device.
//
//   auto info = registry.Create(owner, config, {.reserved_tokens = 4096});
//   auto use = registry.Use(owner, info->name, layer);     // per request
//   step.layer = use->layer; work.required_device = use->device;
//
// A session belongs to its owner, and does not exist for others. gRPC does not
// tell when a client is gone, so sessions live for a time (ttl) that every use
// extends. Names are "sessions/<replica>.<32 hexadecimal digits>": they tell
// which server has the session, and cannot be guessed.
//
// Errors, everywhere, with a reason of server/engine/error_reason.h:
//   INVALID_ARGUMENT   (INVALID_REQUEST) a name or number out of its range
//   NOT_FOUND          (SESSION_NOT_FOUND) the owner has no such session: it
//                      never was, was deleted, has expired, or the server has
//                      been restarted
//   NOT_FOUND          (WRONG_REPLICA) another server has it, which the fact
//                      error_fact::kReplica names
//   ABORTED            (SESSION_LOST) a batch that appended to it failed
#ifndef ATTENTION_SERVER_SESSIONS_SESSION_REGISTRY_H_
#define ATTENTION_SERVER_SESSIONS_SESSION_REGISTRY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/engine/device.h"
#include "server/engine/kv_cache.h"
#include "server/memory/memory_pool.h"
#include "server/metrics/metrics.h"
#include "server/metrics/session_metrics.h"
#include "server/scheduling/clock.h"
#include "server/sessions/kv_store.h"
#include "server/sessions/owner_account.h"
#include "server/sessions/session.h"
#include "server/sessions/session_table.h"

namespace attention {

// Thread-safe.
class SessionRegistry {
 public:
  struct Options {
    // Part of every name: letters, digits, '-' and '_', 1 to 63 of them.
    std::string replica_name = "local";
    // Most sessions at a time, of all owners and of one.
    int64_t max_session_count = 16'384;
    int64_t max_owner_session_count = 4'096;
    // Most tokens of an owner: per layer of each session those resident or
    // reserved, whichever are more. Shared ones count for each session.
    int64_t max_owner_tokens = int64_t{1} << 40;
    // Longest ttl; at most kLongestSessionTtl.
    absl::Duration max_ttl = absl::Hours(24);
    // Memory is got from the pool in pieces of so many bytes, at least one page
    // and at most an eighth of the budget; those without a page in use go back.
    size_t slab_bytes = size_t{32} << 20;
  };

  // Where the sessions of one device have their keys and values.
  struct DeviceMemory {
    Device* device = nullptr;
    MemoryPool* pool = nullptr;
    // Most bytes that sessions hold of the pool.
    size_t budget_bytes = 0;
    // Memory of the host, which the device reaches, for pages of idle sessions
    // when others need theirs, and the most bytes of it. Null: they stay.
    MemoryPool* spill_pool = nullptr;
    size_t spill_budget_bytes = 0;
  };

  struct CreateOptions {
    // Pages for so many tokens are set aside for every layer at once: appends
    // up to this position cannot fail for lack of memory.
    int64_t reserved_tokens = 0;
    absl::Duration ttl = kDefaultSessionTtl;
  };

  struct ForkOptions {
    std::optional<int64_t> position;  // unset: all that each layer has
    int64_t reserved_tokens = 0;  // as in CreateOptions, for the new session
    std::optional<absl::Duration> ttl;  // unset: that of the origin
  };

  // INVALID_ARGUMENT for options out of range. The rest outlives the registry,
  // `devices` in the order in which the scheduler numbers them.
  static absl::StatusOr<std::unique_ptr<SessionRegistry>> Create(
      Options options, std::vector<DeviceMemory> devices, Clock* clock,
      Metrics* metrics);
  // No batch may be under way.
  ~SessionRegistry();

  const Options& options() const { return options_; }

  // The resident keys and values of a device; lives as long as the registry.
  KvCache* cache(int device) const;

  // Opens a session on the device with the fewest resident bytes.
  //   RESOURCE_EXHAUSTED (QUOTA_EXCEEDED) the owner has to delete something
  //                      (CACHE_FULL) others have to; worth a retry
  //                      (REQUEST_TOO_LARGE) the reservation exceeds the budget
  //   UNAVAILABLE        (DEVICE_FAILED) no device works
  absl::StatusOr<SessionInfo> Create(absl::string_view owner,
                                     const SessionConfig& config,
                                     const CreateOptions& options);

  // Does not extend the session's life.
  absl::StatusOr<SessionInfo> Get(absl::string_view owner,
                                  absl::string_view name) const;

  struct Page {
    std::vector<SessionInfo> sessions;
    std::string next_page_token;  // empty: that was all
  };
  // Up to `page_size` sessions of the owner, more than 0, in a fixed order.
  // `page_token` is empty or what the page before said.
  absl::StatusOr<Page> List(absl::string_view owner, int page_size,
                            absl::string_view page_token) const;

  // Steps that have begun are computed; others fail with NOT_FOUND.
  absl::Status Delete(absl::string_view owner, absl::string_view name);

  // Extends the session's life from now on, by its ttl or by a new one that
  // holds from now on.
  absl::StatusOr<SessionInfo> Renew(absl::string_view owner,
                                    absl::string_view name,
                                    std::optional<absl::Duration> ttl);

  // Extends the session's life. INVALID_ARGUMENT when it has no such layer.
  absl::StatusOr<SessionUse> Use(absl::string_view owner,
                                 absl::string_view name, int64_t layer);

  // A new session of the same owner, configuration and device that starts with
  // the tokens of this one. No key is copied: pages are shared until either is
  // appended to. Extends the life of the origin. Errors of Create, and
  //   OUT_OF_RANGE  (POSITION_GAP) a layer has fewer tokens than the position
  //                 (KEYS_FREED) a query there would see keys that the window
  //                 has freed
  absl::StatusOr<SessionInfo> Fork(absl::string_view owner,
                                   absl::string_view name,
                                   const ForkOptions& options);

  // Cuts every layer that has more than `position` tokens. Extends the
  // session's life.
  //   OUT_OF_RANGE        (KEYS_FREED) as for Fork
  //   RESOURCE_EXHAUSTED  (CACHE_FULL) only with a reservation: tokens that are
  //                       cut stay in memory for forks, and others in their
  //                       place cannot be reserved. Nothing has changed.
  absl::StatusOr<SessionInfo> Truncate(absl::string_view owner,
                                       absl::string_view name,
                                       int64_t position);

  // To be called now and then: forgets sessions whose time is over, and says
  // how many. (They are not to be had any more in any case.)
  int ReleaseExpired();

 private:
  struct DeviceSessions {
    Device* device;
    std::unique_ptr<KvStore> store;
  };

  SessionRegistry(Options options, const std::vector<DeviceMemory>& devices,
                  Clock* clock, Metrics* metrics);

  absl::Status CheckTtl(absl::Duration ttl) const;
  KvStore& StoreOf(const ListedSession& session) const;
  SessionInfo InfoOf(const ListedSession& session) const;
  absl::StatusOr<SessionTable::Entry> Find(absl::string_view owner,
                                           absl::string_view name,
                                           bool extend) const;

  // A new session whose pages `open` gets. Tries again once expired ones are
  // gone, if that may help.
  absl::StatusOr<SessionInfo> Add(
      absl::string_view owner, absl::Duration ttl, int64_t reserved_tokens,
      SessionEvent event,
      absl::FunctionRef<absl::Status(ListedSession& session,
                                     std::shared_ptr<OwnerAccount> account)>
          open);
  absl::Status OpenSomewhere(ListedSession& session,
                             std::shared_ptr<OwnerAccount> account) const;

  const Options options_;
  Clock& clock_;
  Metrics& metrics_;
  std::vector<DeviceSessions> devices_;
  SessionTable table_;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_SESSIONS_SESSION_REGISTRY_H_
