#include "server/sessions/session_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/error_reason.h"

namespace attention {

absl::StatusOr<std::shared_ptr<OwnerAccount>> SessionTable::Admit(
    absl::string_view owner) {
  absl::MutexLock lock(&mutex_);
  if (session_count_ >= limits_.session_count) {
    return WithReason(
        absl::ResourceExhaustedError(absl::StrCat(
            "there can be ", limits_.session_count, " sessions at a time")),
        error_reason::kCacheFull);
  }
  Owner& entry = owners_[owner];
  if (entry.session_count >= limits_.owner_session_count) {
    return WithReason(absl::ResourceExhaustedError(absl::StrCat(
                          "an owner can have ", limits_.owner_session_count,
                          " sessions at a time")),
                      error_reason::kQuotaExceeded);
  }
  if (entry.account == nullptr) {
    entry.account = std::make_shared<OwnerAccount>(limits_.owner_tokens);
  }
  ++session_count_;
  ++entry.session_count;
  return entry.account;
}

void SessionTable::Dismiss(absl::string_view owner) {
  absl::MutexLock lock(&mutex_);
  DismissLocked(owner);
}

void SessionTable::DismissLocked(absl::string_view owner) {
  --session_count_;
  const auto entry = owners_.find(owner);
  if (--entry->second.session_count == 0) owners_.erase(entry);
}

void SessionTable::Insert(Entry session, absl::Time now) {
  session->create_time = now;
  session->Extend(now);
  absl::MutexLock lock(&mutex_);
  owners_.find(session->owner)->second.ids.insert(session->id);
  sessions_.emplace(session->id, std::move(session));
}

SessionTable::Entry SessionTable::Find(absl::string_view owner,
                                       absl::string_view id, absl::Time now,
                                       bool extend) const {
  absl::ReaderMutexLock lock(&mutex_);
  const auto it = sessions_.find(id);
  if (it == sessions_.end() || it->second->owner != owner ||
      it->second->HasExpired(now)) {
    return nullptr;
  }
  if (extend) it->second->Extend(now);
  return it->second;
}

bool SessionTable::Remove(const ListedSession& session) {
  absl::MutexLock lock(&mutex_);
  return RemoveLocked(session);
}

bool SessionTable::RemoveLocked(const ListedSession& session) {
  if (sessions_.erase(session.id) == 0) return false;
  owners_.find(session.owner)->second.ids.erase(session.id);
  DismissLocked(session.owner);
  return true;
}

std::vector<SessionTable::Entry> SessionTable::RemoveExpired(absl::Time now) {
  std::vector<Entry> expired;
  absl::MutexLock lock(&mutex_);
  for (const auto& [id, session] : sessions_) {
    if (session->HasExpired(now)) expired.push_back(session);
  }
  for (const Entry& session : expired) RemoveLocked(*session);
  return expired;
}

std::vector<SessionTable::Entry> SessionTable::List(absl::string_view owner,
                                                    absl::string_view id,
                                                    size_t count,
                                                    absl::Time now) const {
  std::vector<Entry> listed;
  absl::ReaderMutexLock lock(&mutex_);
  const auto entry = owners_.find(owner);
  if (entry == owners_.end()) return listed;
  const auto& ids = entry->second.ids;
  for (auto it = ids.upper_bound(id); it != ids.end() && listed.size() < count;
       ++it) {
    const Entry& session = sessions_.find(*it)->second;
    if (!session->HasExpired(now)) listed.push_back(session);
  }
  return listed;
}

}  // namespace attention
