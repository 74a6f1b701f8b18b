// Sessions and their pages; the order of batches is in kv_store_batches.cc, who
// makes room in kv_store_spill.cc.
#include "server/sessions/kv_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/sessions/kv_errors.h"

namespace attention {
namespace {

// What counts in the owner's account for a layer.
int64_t ChargeFor(const LayerShape& shape, int64_t resident_tokens) {
  return std::max(shape.reserved_tokens, resident_tokens);
}

absl::Status CheckUsable(const StoredSession& session) {
  if (session.is_closed) return SessionGone();
  if (session.is_lost) return SessionLost();
  return absl::OkStatus();
}

// Whether queries after `position` tokens see only keys that are there.
absl::Status CheckPosition(const LayerPages& pages, int64_t position) {
  return pages.HasAllSeenAt(position) ? absl::OkStatus()
                                      : KeysFreed(pages.length());
}

}  // namespace

KvStore::KvStore(const Memory& memory, size_t slab_bytes,
                 SessionMetrics* metrics)
    : metrics_(*metrics),
      memory_(memory.pool, memory.budget_bytes, slab_bytes) {
  if (memory.spill_pool != nullptr && memory.spill_budget_bytes > 0) {
    spill_memory_.emplace(memory.spill_pool, memory.spill_budget_bytes,
                          slab_bytes);
  }
}

KvStore::~KvStore() = default;

std::shared_ptr<StoredSession> KvStore::MakeSession(
    std::shared_ptr<const SessionConfig> config,
    std::shared_ptr<OwnerAccount> account, int64_t reserved_tokens) {
  auto session = std::make_shared<StoredSession>();
  session->store = this;
  session->shape = {.page_tokens = config->paged.page_tokens,
                    .window_left = config->window_left,
                    .sink_tokens = config->sink_tokens,
                    .reserved_tokens = reserved_tokens};
  PoolOfSessions& pool = pools_[PageStride(PageBytes(config->paged))];
  if (pool.pool == nullptr) {
    pool.pool = std::make_unique<PagePool>(
        PageBytes(config->paged), &memory_,
        spill_memory_.has_value() ? &*spill_memory_ : nullptr, &moves_);
  }
  ++pool.session_count;
  ++session_count_;
  session->pool = pool.pool.get();
  for (int32_t i = 0; i < config->layer_count; ++i) {
    session->layers.emplace_back(session.get(), session->pool, &session->shape);
  }
  session->config = std::move(config);
  session->account = std::move(account);
  if (spill_memory_.has_value()) {
    session->place = awake_.insert(awake_.end(), session.get());
  }
  return session;
}

absl::StatusOr<std::shared_ptr<StoredSession>> KvStore::Open(
    std::shared_ptr<const SessionConfig> config,
    std::shared_ptr<OwnerAccount> account, int64_t reserved_tokens) {
  absl::Status status = account->Add(config->layer_count * reserved_tokens);
  if (!status.ok()) return status;
  std::shared_ptr<StoredSession> session;
  int64_t missing = 0;
  bool is_reserved = false;
  {
    absl::MutexLock lock(&mutex_);
    session =
        MakeSession(std::move(config), std::move(account), reserved_tokens);
    for (StoredLayer& layer : session->layers) {
      layer.charged_tokens = reserved_tokens;
      missing += session->shape.PromiseFor(0, /*tail_is_shared=*/false);
    }
    status = session->pool->frames().CanReserve(missing);
    // Others have to make room for all of it.
    if (ReasonOf(status) == error_reason::kCacheFull) {
      status = Reserve(*session->pool, missing);
      is_reserved = status.ok();
    }
  }
  // A slab at a time: getting one takes a while, and batches must go on.
  auto layer = session->layers.begin();
  while (missing > 0 && status.ok()) {
    absl::MutexLock lock(&mutex_);
    PagePool& pool = *session->pool;
    int64_t count = std::min(missing, pool.frames().frames_per_slab());
    if (!is_reserved) status = Reserve(pool, count);
    if (!status.ok()) break;
    missing -= count;
    while (count > 0) {
      const int64_t layer_missing =
          session->shape.PromiseFor(0, false) - layer->pages.promised();
      const int64_t part = std::min(count, layer_missing);
      layer->pages.AddPromise(part);
      count -= part;
      if (part == layer_missing) ++layer;
    }
  }
  if (!status.ok()) {
    Close(*session);
    return status;
  }
  return session;
}

absl::StatusOr<std::shared_ptr<StoredSession>> KvStore::Fork(
    StoredSession& origin, std::optional<int64_t> position,
    int64_t reserved_tokens) {
  absl::MutexLock lock(&mutex_);
  AwaitBegun();
  absl::Status status = CheckUsable(origin);
  if (!status.ok()) return status;
  Touch(origin);
  for (const StoredLayer& layer : origin.layers) {
    const int64_t length = layer.pages.length();
    const int64_t at = position.value_or(length);
    if (at > length) return PositionGap("token_count", at, length);
    status = CheckPosition(layer.pages, at);
    if (!status.ok()) return status;
  }

  std::shared_ptr<StoredSession> fork =
      MakeSession(origin.config, origin.account, reserved_tokens);
  // Promises of the new session, and those for copies of pages that the old one
  // has reserved and has no longer for itself.
  int64_t missing = 0;
  int64_t spilled = 0;
  int64_t charge = 0;
  const auto promise_of = [](const StoredSession& session,
                             const LayerPages& pages) {
    return session.shape.PromiseFor(pages.length(),
                                    pages.IsSharedAt(pages.length()));
  };
  for (size_t i = 0; i < origin.layers.size(); ++i) {
    const LayerPages& from = origin.layers[i].pages;
    LayerPages& to = fork->layers[i].pages;
    to.ShareFrom(from, position.value_or(from.length()));
    // What is reserved stays on the device.
    if (reserved_tokens > 0 && !to.is_active()) spilled += to.Activate();
    missing += promise_of(*fork, to) +
               std::max<int64_t>(promise_of(origin, from) - from.promised(), 0);
    charge += ChargeFor(fork->shape, to.resident_tokens());
    resident_tokens_ += to.resident_tokens();
  }
  status = fork->account->Add(charge);
  if (status.ok()) {
    status = Reserve(*fork->pool, missing + spilled, spilled);
    if (!status.ok()) fork->account->Remove(charge);
  }
  if (!status.ok()) {
    CloseLocked(*fork);
    return status;
  }
  for (size_t i = 0; i < origin.layers.size(); ++i) {
    LayerPages& from = origin.layers[i].pages;
    StoredLayer& to = fork->layers[i];
    to.charged_tokens = ChargeFor(fork->shape, to.pages.resident_tokens());
    to.length = to.pages.length();
    if (reserved_tokens > 0) {
      to.launch = launch_;
      to.pages.Restore();
    }
    to.pages.AddPromise(promise_of(*fork, to.pages));
    from.AddPromise(
        std::max<int64_t>(promise_of(origin, from) - from.promised(), 0));
  }
  CountRestored(*fork, spilled);
  // What batches under way write, the fork has as well.
  for (auto& [number, appended_to] : batches_) {
    if (std::any_of(appended_to.begin(), appended_to.end(),
                    [&](const auto& s) { return s.get() == &origin; })) {
      appended_to.push_back(fork);
    }
  }
  return fork;
}

absl::Status KvStore::Truncate(StoredSession& session, int64_t position) {
  absl::MutexLock lock(&mutex_);
  AwaitBegun();
  absl::Status status = CheckUsable(session);
  int64_t missing = 0, freed = 0;
  const auto promise_for = [&](const LayerPages& pages) {
    return session.shape.PromiseFor(position, pages.IsSharedAt(position));
  };
  for (const StoredLayer& layer : session.layers) {
    const LayerPages& pages = layer.pages;
    if (!status.ok()) return status;
    if (pages.length() <= position) continue;
    status = CheckPosition(pages, position);
    missing += std::max<int64_t>(promise_for(pages) - pages.promised(), 0);
    freed += pages.OwnPagesFrom(position);
  }
  if (status.ok() && missing > freed) {
    status = Reserve(*session.pool, missing - freed);
  }
  if (!status.ok()) return status;
  Touch(session);

  for (StoredLayer& layer : session.layers) {
    LayerPages& pages = layer.pages;
    if (pages.length() <= position) continue;
    resident_tokens_ -= pages.resident_tokens();
    pages.Cut(position);
    resident_tokens_ += pages.resident_tokens();
    layer.length = position;
    pages.AddPromise(
        std::max<int64_t>(promise_for(pages) - pages.promised(), 0));
    const int64_t charge = ChargeFor(session.shape, pages.resident_tokens());
    session.account->Remove(layer.charged_tokens - charge);
    layer.charged_tokens = charge;
  }
  // Free now, or so many that were just freed.
  (void)session.pool->frames().Reserve(std::min(missing, freed));
  ReturnMemory(*session.pool);
  return absl::OkStatus();
}

absl::Status KvStore::Append(StoredLayer& layer, int64_t count,
                             int64_t first_query,
                             std::vector<PageCopy>& copies) {
  StoredSession& session = *layer.session;
  LayerPages& pages = layer.pages;
  // As long as the last append can be undone, so that drafts can be rejected,
  // whatever the window.
  const int64_t passed =
      session.shape.SeenAt(std::min(pages.length(), first_query)).begin;
  const int64_t freed = pages.TokensFreedBefore(passed);
  const int64_t growth = count - freed;
  const int64_t more =
      ChargeFor(session.shape, pages.resident_tokens() + growth) -
      layer.charged_tokens;
  absl::Status status = session.account->Add(more);
  if (!status.ok()) return status;
  status = Wake(layer, count);
  if (!status.ok()) {
    session.account->Remove(more);
    return status;
  }
  pages.Append(count, copies, beginning_);
  pages.FreeBefore(passed, beginning_);
  layer.charged_tokens += more;
  layer.length = pages.length();
  resident_tokens_ += growth;
  if (freed > 0 || session.pool->has_held()) ReturnMemory(*session.pool);
  return absl::OkStatus();
}

void KvStore::Close(StoredSession& session) {
  absl::MutexLock lock(&mutex_);
  CloseLocked(session);
}

void KvStore::CloseLocked(StoredSession& session) {
  if (std::exchange(session.is_closed, true)) return;
  ClearPages(session);
  if (spill_memory_.has_value()) {
    (session.is_awake ? awake_ : asleep_).erase(session.place);
  }
  --session_count_;
  --pools_[session.pool->page_bytes()].session_count;
  ReturnMemory(*std::exchange(session.pool, nullptr));
}

void KvStore::ClearPages(StoredSession& session) {
  for (StoredLayer& layer : session.layers) {
    resident_tokens_ -= layer.pages.resident_tokens();
    layer.pages.Clear(beginning_);
    layer.length = 0;
    session.account->Remove(std::exchange(layer.charged_tokens, 0));
  }
}

void KvStore::ReturnMemory(PagePool& pool) {
  if (pool.has_held()) {
    if (std::find(holding_.begin(), holding_.end(), &pool) == holding_.end()) {
      holding_.push_back(&pool);
    }
    return;
  }
  pool.ReturnEmptySlabs();
  ReleaseSpare();
  const auto it = pools_.find(pool.page_bytes());
  if (it->second.session_count == 0 && pool.is_empty()) pools_.erase(it);
}

void KvStore::ReleaseSpare() {
  if (!batches_.empty()) return;
  if (session_count_ == 0) moves_.clear();  // nobody needs what they copy
  if (!moves_.empty()) return;
  memory_.ReleaseSpare();
  if (spill_memory_.has_value()) spill_memory_->ReleaseSpare();
}

void KvStore::Describe(const StoredSession& session, SessionInfo& info) const {
  absl::MutexLock lock(&mutex_);
  info.is_lost = session.is_lost;
  for (const StoredLayer& layer : session.layers) {
    info.layer_lengths.push_back(layer.pages.length());
    info.resident_tokens += layer.pages.resident_tokens();
    for (const KvPage* page : layer.pages.pages()) {
      if (page == nullptr) continue;
      info.resident_bytes += session.pool->page_bytes();
      if (page->is_shared()) info.shared_bytes += session.pool->page_bytes();
    }
  }
}

int64_t KvStore::resident_bytes() const {
  const SessionUsage usage = session_usage();
  return usage.page_bytes.used + usage.page_bytes.reserved +
         usage.page_bytes.spilled;
}

SessionUsage KvStore::session_usage() const {
  absl::MutexLock lock(&mutex_);
  SessionUsage usage = {
      .session_count = session_count_,
      .resident_tokens = resident_tokens_,
      .budget_bytes = static_cast<int64_t>(memory_.budget_bytes()),
      .spill_budget_bytes =
          spill_memory_.has_value()
              ? static_cast<int64_t>(spill_memory_->budget_bytes())
              : 0};
  for (const auto& [bytes, pool] : pools_) {
    const SessionUsage::Pages pages = pool.pool->counts();
    for (auto [sum, unit] : {std::pair(&usage.page_count, int64_t{1}),
                             std::pair(&usage.page_bytes, bytes)}) {
      sum->used += pages.used * unit;
      sum->shared += pages.shared * unit;
      sum->reserved += pages.reserved * unit;
      sum->free += pages.free * unit;
      sum->spilled += pages.spilled * unit;
    }
  }
  return usage;
}

}  // namespace attention
