#include "server/sessions/session_registry.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/error_reason.h"
#include "server/sessions/session_name.h"

namespace attention {
namespace {

// The same whether it never was, has expired or is another owner's.
absl::Status NotFound(absl::string_view name) {
  return WithReason(
      absl::NotFoundError(absl::StrCat(
          "no session \"", name,
          "\" of this owner; it may have been deleted, "
          "have expired, or have been lost in a restart of the server")),
      error_reason::kSessionNotFound);
}

absl::Status WrongReplica(const SessionName& name, absl::string_view replica) {
  return WithFact(
      WithReason(absl::NotFoundError(absl::StrCat(
                     "the session is on the server whose replica_name is \"",
                     name.replica, "\"; this one is \"", replica, "\"")),
                 error_reason::kWrongReplica),
      error_fact::kReplica, name.replica);
}

absl::Status CheckTokens(absl::string_view field, int64_t value) {
  return value >= 0 && value <= kMaxLayerTokens
             ? absl::OkStatus()
             : InvalidRequest(absl::StrCat(field, " must be in [0, ",
                                           kMaxLayerTokens, "]; got ", value));
}

bool IsFull(const absl::Status& status) {
  const std::string_view reason = ReasonOf(status);
  return reason == error_reason::kCacheFull ||
         reason == error_reason::kQuotaExceeded;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SessionRegistry>> SessionRegistry::Create(
    Options options, std::vector<DeviceMemory> devices, Clock* clock,
    Metrics* metrics) {
  if (absl::Status status = CheckReplicaName(options.replica_name);
      !status.ok()) {
    return status;
  }
  if (options.max_ttl <= absl::ZeroDuration() ||
      options.max_ttl > kLongestSessionTtl) {
    return InvalidRequest(
        absl::StrCat("the longest ttl must be more than 0 and at most ",
                     absl::FormatDuration(kLongestSessionTtl), "; got ",
                     absl::FormatDuration(options.max_ttl)));
  }
  for (const auto& [what, value] :
       {std::pair("session count", options.max_session_count),
        std::pair("session count of an owner", options.max_owner_session_count),
        std::pair("token count of an owner", options.max_owner_tokens),
        std::pair("slab size", static_cast<int64_t>(options.slab_bytes))}) {
    if (value < 1) {
      return InvalidRequest(
          absl::StrCat("the ", what, " must be at least 1; got ", value));
    }
  }
  return std::unique_ptr<SessionRegistry>(
      new SessionRegistry(std::move(options), devices, clock, metrics));
}

SessionRegistry::SessionRegistry(Options options,
                                 const std::vector<DeviceMemory>& devices,
                                 Clock* clock, Metrics* metrics)
    : options_(std::move(options)),
      clock_(*clock),
      metrics_(*metrics),
      table_({.session_count = options_.max_session_count,
              .owner_session_count = options_.max_owner_session_count,
              .owner_tokens = options_.max_owner_tokens}) {
  for (const DeviceMemory& memory : devices) {
    devices_.push_back(
        {memory.device,
         std::make_unique<KvStore>(
             KvStore::Memory{.pool = memory.pool,
                             .budget_bytes = memory.budget_bytes,
                             .spill_pool = memory.spill_pool,
                             .spill_budget_bytes = memory.spill_budget_bytes},
             options_.slab_bytes, &metrics->sessions())});
    metrics_.AddSessions(devices_.back().store.get(),
                         memory.device->description().name);
  }
}

SessionRegistry::~SessionRegistry() {
  for (const auto& session : table_.RemoveExpired(absl::InfiniteFuture())) {
    StoreOf(*session).Close(*session->stored);
  }
  for (const DeviceSessions& device : devices_) {
    metrics_.RemoveSessions(device.store.get());
  }
}

KvCache* SessionRegistry::cache(int device) const {
  return devices_[device].store.get();
}

absl::StatusOr<SessionInfo> SessionRegistry::Create(
    absl::string_view owner, const SessionConfig& config,
    const CreateOptions& options) {
  for (const absl::Status& status :
       {ValidateSessionConfig(config), CheckTtl(options.ttl),
        CheckTokens("reserved_token_count", options.reserved_tokens)}) {
    if (!status.ok()) return status;
  }
  const auto shared = std::make_shared<const SessionConfig>(config);
  return Add(
      owner, options.ttl, options.reserved_tokens, SessionEvent::kCreated,
      [&](ListedSession& session, std::shared_ptr<OwnerAccount> account) {
        session.config = shared;
        return OpenSomewhere(session, std::move(account));
      });
}

absl::StatusOr<SessionInfo> SessionRegistry::Fork(absl::string_view owner,
                                                  absl::string_view name,
                                                  const ForkOptions& options) {
  absl::StatusOr<SessionTable::Entry> origin = Find(owner, name, true);
  if (!origin.ok()) return origin.status();
  const ListedSession& from = **origin;
  const absl::Duration ttl = options.ttl.value_or(from.ttl());
  for (const absl::Status& status :
       {CheckTtl(ttl),
        CheckTokens("reserved_token_count", options.reserved_tokens),
        CheckTokens("token_count", options.position.value_or(0))}) {
    if (!status.ok()) return status;
  }
  return Add(owner, ttl, options.reserved_tokens, SessionEvent::kForked,
             [&](ListedSession& session, std::shared_ptr<OwnerAccount>) {
               session.config = from.config;
               session.device = from.device;
               absl::StatusOr<std::shared_ptr<StoredSession>> stored =
                   StoreOf(from).Fork(*from.stored, options.position,
                                      options.reserved_tokens);
               if (stored.ok()) session.stored = *std::move(stored);
               return stored.status();
             });
}

absl::StatusOr<SessionInfo> SessionRegistry::Add(
    absl::string_view owner, absl::Duration ttl, int64_t reserved_tokens,
    SessionEvent event,
    absl::FunctionRef<absl::Status(ListedSession& session,
                                   std::shared_ptr<OwnerAccount> account)>
        open) {
  absl::StatusOr<std::string> id = MakeSessionId();
  if (!id.ok()) return id.status();
  auto session = std::make_shared<ListedSession>();
  session->id = *std::move(id);
  session->owner = std::string(owner);
  session->reserved_tokens = reserved_tokens;
  session->ttl_nanos = absl::ToInt64Nanoseconds(ttl);
  const auto try_once = [&]() -> absl::Status {
    absl::StatusOr<std::shared_ptr<OwnerAccount>> account = table_.Admit(owner);
    if (!account.ok()) return account.status();
    absl::Status status = open(*session, *std::move(account));
    if (!status.ok()) table_.Dismiss(owner);
    return status;
  };
  absl::Status status = try_once();
  // Sessions whose time is over may have what is missing.
  if (IsFull(status) && ReleaseExpired() > 0) status = try_once();
  if (!status.ok()) {
    metrics_.sessions().Refused(ReasonOf(status));
    return status;
  }
  table_.Insert(session, clock_.Now());
  metrics_.sessions().Happened(event);
  return InfoOf(*session);
}

absl::Status SessionRegistry::OpenSomewhere(
    ListedSession& session, std::shared_ptr<OwnerAccount> account) const {
  std::vector<std::pair<int64_t, int>> candidates;
  absl::Status status =
      WithReason(absl::UnavailableError("no device takes sessions"),
                 error_reason::kDeviceFailed);
  for (size_t i = 0; i < devices_.size(); ++i) {
    absl::Status health = devices_[i].device->health();
    if (health.ok()) {
      candidates.emplace_back(devices_[i].store->resident_bytes(), i);
    } else {
      status = WithReason(std::move(health), error_reason::kDeviceFailed);
    }
  }
  std::sort(candidates.begin(), candidates.end());
  for (const auto& [bytes, device] : candidates) {
    absl::StatusOr<std::shared_ptr<StoredSession>> stored =
        devices_[device].store->Open(session.config, account,
                                     session.reserved_tokens);
    status = stored.status();
    if (status.ok()) {
      session.device = device;
      session.stored = *std::move(stored);
      break;
    }
    if (ReasonOf(status) == error_reason::kQuotaExceeded) break;
  }
  return status;
}

absl::StatusOr<SessionTable::Entry> SessionRegistry::Find(
    absl::string_view owner, absl::string_view name, bool extend) const {
  absl::StatusOr<SessionName> parts = ParseSessionName(name);
  if (!parts.ok()) return parts.status();
  if (parts->replica != options_.replica_name) {
    return WrongReplica(*parts, options_.replica_name);
  }
  SessionTable::Entry session =
      table_.Find(owner, parts->id, clock_.Now(), extend);
  if (session == nullptr) return NotFound(name);
  return session;
}

absl::StatusOr<SessionInfo> SessionRegistry::Get(absl::string_view owner,
                                                 absl::string_view name) const {
  absl::StatusOr<SessionTable::Entry> session = Find(owner, name, false);
  if (!session.ok()) return session.status();
  return InfoOf(**session);
}

absl::StatusOr<SessionRegistry::Page> SessionRegistry::List(
    absl::string_view owner, int page_size,
    absl::string_view page_token) const {
  if (page_size < 1) {
    return InvalidRequest(
        absl::StrCat("page_size must be at least 1; got ", page_size));
  }
  if (!page_token.empty() && !IsSessionId(page_token)) {
    return InvalidRequest(
        "page_token must be empty or what the server said, unchanged");
  }
  const size_t count = page_size;
  std::vector<SessionTable::Entry> sessions =
      table_.List(owner, page_token, count + 1, clock_.Now());
  Page page;
  if (sessions.size() > count) {
    sessions.pop_back();
    page.next_page_token = sessions.back()->id;
  }
  for (const SessionTable::Entry& session : sessions) {
    page.sessions.push_back(InfoOf(*session));
  }
  return page;
}

absl::Status SessionRegistry::Delete(absl::string_view owner,
                                     absl::string_view name) {
  absl::StatusOr<SessionTable::Entry> session = Find(owner, name, false);
  if (!session.ok()) return session.status();
  if (!table_.Remove(**session)) return NotFound(name);  // somebody else did
  StoreOf(**session).Close(*(*session)->stored);
  metrics_.sessions().Happened(SessionEvent::kDeleted);
  return absl::OkStatus();
}

absl::StatusOr<SessionInfo> SessionRegistry::Renew(
    absl::string_view owner, absl::string_view name,
    std::optional<absl::Duration> ttl) {
  if (ttl.has_value()) {
    if (absl::Status status = CheckTtl(*ttl); !status.ok()) return status;
  }
  absl::StatusOr<SessionTable::Entry> session = Find(owner, name, true);
  if (!session.ok()) return session.status();
  if (ttl.has_value()) {
    (*session)->ttl_nanos = absl::ToInt64Nanoseconds(*ttl);
    (*session)->Extend(clock_.Now());
  }
  return InfoOf(**session);
}

absl::StatusOr<SessionUse> SessionRegistry::Use(absl::string_view owner,
                                                absl::string_view name,
                                                int64_t layer) {
  absl::StatusOr<SessionTable::Entry> found = Find(owner, name, true);
  if (!found.ok()) return found.status();
  const ListedSession& session = **found;
  if (layer < 0 || layer >= session.config->layer_count) {
    return InvalidRequest(absl::StrCat("layer must be in [0, ",
                                       session.config->layer_count - 1,
                                       "]; got ", layer));
  }
  StoredLayer& stored = session.stored->layers[layer];
  return SessionUse{.config = session.config,
                    .layer = {session.stored, &stored},
                    .layer_length = stored.length,
                    .device = session.device};
}

absl::StatusOr<SessionInfo> SessionRegistry::Truncate(absl::string_view owner,
                                                      absl::string_view name,
                                                      int64_t position) {
  absl::Status status = CheckTokens("token_count", position);
  if (!status.ok()) return status;
  absl::StatusOr<SessionTable::Entry> session = Find(owner, name, true);
  if (!session.ok()) return session.status();
  status = StoreOf(**session).Truncate(*(*session)->stored, position);
  if (!status.ok()) {
    metrics_.sessions().Refused(ReasonOf(status));
    return status;
  }
  metrics_.sessions().Happened(SessionEvent::kTruncated);
  return InfoOf(**session);
}

int SessionRegistry::ReleaseExpired() {
  const std::vector<SessionTable::Entry> expired =
      table_.RemoveExpired(clock_.Now());
  for (const SessionTable::Entry& session : expired) {
    StoreOf(*session).Close(*session->stored);
    metrics_.sessions().Happened(SessionEvent::kExpired);
  }
  return static_cast<int>(expired.size());
}

absl::Status SessionRegistry::CheckTtl(absl::Duration ttl) const {
  if (ttl > absl::ZeroDuration() && ttl <= options_.max_ttl) {
    return absl::OkStatus();
  }
  return InvalidRequest(absl::StrCat("ttl must be more than 0 and at most ",
                                     absl::FormatDuration(options_.max_ttl),
                                     "; got ", absl::FormatDuration(ttl)));
}

KvStore& SessionRegistry::StoreOf(const ListedSession& session) const {
  return *devices_[session.device].store;
}

SessionInfo SessionRegistry::InfoOf(const ListedSession& session) const {
  SessionInfo info = {
      .name = FormatSessionName(options_.replica_name, session.id),
      .config = *session.config,
      .device = session.device,
      .reserved_tokens = session.reserved_tokens,
      .ttl = session.ttl(),
      .create_time = session.create_time,
      .expire_time = session.expire_time()};
  StoreOf(session).Describe(*session.stored, info);
  return info;
}

}  // namespace attention
