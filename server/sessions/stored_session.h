// A session as the KvStore has it.
#ifndef ATTENTION_SERVER_SESSIONS_STORED_SESSION_H_
#define ATTENTION_SERVER_SESSIONS_STORED_SESSION_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>

#include "server/engine/kv_cache.h"
#include "server/sessions/layer_pages.h"
#include "server/sessions/owner_account.h"
#include "server/sessions/page_pool.h"
#include "server/sessions/session.h"

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
  uint64_t launch = 0;         // the last one with a step of it
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
  // In the store's list of those that are awake, or of those that are not.
  std::list<StoredSession*>::iterator place;
  bool is_awake = true;
  // Has had to make room since it was last used.
  bool is_evicted = false;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_SESSIONS_STORED_SESSION_H_
