// Which sessions make room for others, and how they come back.
#include <algorithm>
#include <limits>
#include <utility>

#include "server/sessions/kv_errors.h"
#include "server/sessions/kv_store.h"

namespace attention {
namespace {

// While nothing is launched, changes of sessions may not pile up copies for
// ever.
constexpr size_t kMaxWaitingMoves = 1 << 16;

}  // namespace

absl::Status KvStore::Reserve(PagePool& pool, int64_t count, int64_t restored) {
  absl::Status status = pool.frames().Reserve(count);
  if (!spill_memory_.has_value() || moves_.size() > kMaxWaitingMoves ||
      ReasonOf(status) != error_reason::kCacheFull) {
    return status;
  }
  const int64_t missing = count - pool.frames().available();
  for (auto next = awake_.begin();
       next != awake_.end() && pool.idle_count() < missing;) {
    StoredSession& session = **next++;
    if (session.pool == &pool) PutAside(session, missing);
  }
  if (pool.MakeRoom(count, restored)) {
    metrics_.Spilled(missing, missing * pool.page_bytes());
    return absl::OkStatus();
  }
  if (GetSlabs(pool, count)) return pool.frames().Reserve(count);
  lacks_idle_pages_ = pool.idle_count() < missing;
  return status;
}

bool KvStore::GetSlabs(const PagePool& pool, int64_t count) {
  const auto empty_slabs_of = [&](PagePool& other) {
    while (!pool.frames().CanReserve(count).ok()) {
      const int64_t spilled = other.EmptySlab();
      if (spilled == 0) return false;
      metrics_.Spilled(spilled, spilled * other.page_bytes());
    }
    return true;
  };
  const auto may_help = [&](const PagePool& other) {
    return &other != &pool &&
           other.frames().slab_bytes() == pool.frames().slab_bytes();
  };
  for (const auto& [bytes, other] : pools_) {
    if (may_help(*other.pool) && empty_slabs_of(*other.pool)) return true;
  }
  for (auto next = awake_.begin(); next != awake_.end();) {
    StoredSession& session = **next++;
    if (!may_help(*session.pool)) continue;
    PutAside(session, std::numeric_limits<int64_t>::max());
    if (empty_slabs_of(*session.pool)) return true;
  }
  return false;
}

void KvStore::PutAside(StoredSession& session, int64_t idle_count) {
  PagePool& pool = *session.pool;
  const int64_t idle_before = pool.idle_count();
  bool may_give_more = false;
  // What is reserved stays on the device, so that appends there cannot fail.
  if (session.shape.reserved_tokens == 0) {
    for (StoredLayer& layer : session.layers) {
      if (!layer.pages.is_active()) continue;
      may_give_more |= layer.launch == launch_;
      if (layer.launch == launch_) continue;
      layer.pages.Deactivate();
      if (pool.idle_count() < idle_count) continue;
      may_give_more = true;
      break;
    }
  }
  if (pool.idle_count() > idle_before && !session.is_evicted) {
    session.is_evicted = true;
    metrics_.Happened(SessionEvent::kEvicted);
  }
  if (may_give_more) return;
  asleep_.splice(asleep_.end(), awake_, session.place);
  session.is_awake = false;
}

absl::Status KvStore::Wake(StoredLayer& layer, int64_t append_length) {
  LayerPages& pages = layer.pages;
  // Nor does it make room for itself.
  const uint64_t launch = std::exchange(layer.launch, launch_);
  const bool was_active = pages.is_active();
  const int64_t spilled = was_active ? 0 : pages.Activate();
  const int64_t missing =
      append_length == 0 ? 0 : pages.MissingFor(append_length);
  absl::Status status;
  if (spilled + missing > 0) {
    status = Reserve(*layer.session->pool, spilled + missing, spilled);
  }
  if (!status.ok()) {
    layer.launch = launch;
    if (!was_active) pages.Deactivate();
    return status;
  }
  if (!was_active) pages.Restore();
  pages.AddPromise(missing);
  CountRestored(*layer.session, spilled);
  Touch(*layer.session);
  return status;
}

void KvStore::CountRestored(StoredSession& session, int64_t page_count) {
  if (page_count == 0) return;
  if (session.is_evicted) metrics_.Happened(SessionEvent::kRestored);
  metrics_.Restored(page_count, page_count * session.pool->page_bytes());
}

void KvStore::Touch(StoredSession& session) {
  if (!spill_memory_.has_value()) return;
  awake_.splice(awake_.end(), session.is_awake ? awake_ : asleep_,
                session.place);
  session.is_awake = true;
  session.is_evicted = false;
}

absl::Status KvStore::Move(
    absl::FunctionRef<absl::Status(absl::Span<const PageMove>)> move) {
  std::vector<PageMove> moves;
  uint64_t launch;
  {
    absl::MutexLock lock(&mutex_);
    // What is put aside from now on is copied before a later launch.
    launch = launch_++;
    launch_has_steps_ = false;
    moves = std::exchange(moves_, {});
  }
  if (moves.empty()) return absl::OkStatus();
  absl::Status status = move(moves);
  if (status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  for (const auto* sessions : {&awake_, &asleep_}) {
    for (StoredSession* session : *sessions) {
      if (std::any_of(session->layers.begin(), session->layers.end(),
                      [launch](const StoredLayer& layer) {
                        return !layer.pages.is_active() ||
                               layer.launch == launch;
                      })) {
        Lose(*session);
      }
    }
  }
  return status;
}

}  // namespace attention
