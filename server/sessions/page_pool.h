// Pages of one size, counted by how many page tables have them.
//
// A page is free, or referenced by at least one table. Tables whose session is
// idle may be put aside (KvStore): a page that only such tables have may leave
// its frame on the device for one in the host's memory, and gets another frame
// when one of them is needed again. Copies are put down in a list, which the
// device makes in its order before the next launch. So a place that one copy
// has read may be given to the next one, or to the launch.
#ifndef ATTENTION_SERVER_SESSIONS_PAGE_POOL_H_
#define ATTENTION_SERVER_SESSIONS_PAGE_POOL_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "server/engine/kv_cache.h"
#include "server/metrics/session_usage.h"
#include "server/sessions/frame_pool.h"
#include "server/sessions/slab_memory.h"

namespace attention {

// Does not move while it is referenced.
struct KvPage {
  Frame* frame = nullptr;  // null while it is in the host's memory
  Frame* host_frame = nullptr;
  int32_t reference_count = 0;
  int32_t active_count = 0;  // of these, tables that are not put aside
  std::list<KvPage*>::iterator idle_place;  // if none is, and it has a frame

  bool is_shared() const { return reference_count > 1; }
  bool is_spilled() const { return frame == nullptr; }
};

// Thread-compatible.
class PagePool {
 public:
  // All outlive the pool. `spill` is the host's memory for pages; may be null.
  PagePool(int64_t page_bytes, SlabMemory* memory, SlabMemory* spill,
           std::vector<PageMove>* moves);

  // On the device. Pages take promised frames.
  FramePool& frames() { return frames_; }
  const FramePool& frames() const { return frames_; }
  // Bytes that a page takes.
  int64_t page_bytes() const { return frames_.frame_bytes(); }

  // A page in a promised frame; its only reference is the caller's, and active.
  KvPage* Take();
  // One reference more.
  void Share(KvPage* page, bool is_active);
  // One reference less: at once, or, if `hold`, from DropHeld on. Until then
  // the page is neither free nor, if two had it, the other's alone: a launch
  // that is being put together may read it for who had it, so nobody may write
  // to it.
  void Release(KvPage* page, bool is_active, bool hold);
  void DropHeld();
  bool has_held() const { return !held_.empty(); }

  // A table that has the page is put aside, or not any more: then the page
  // needs a frame if it is spilled.
  void Deactivate(KvPage* page);
  void Activate(KvPage* page);

  // Pages with a frame, of tables that are put aside only.
  int64_t idle_count() const { return static_cast<int64_t>(idle_.size()); }
  // Promises `count` frames that idle pages have, for Take and for `restored`
  // calls of Restore that follow: so many may get their place on the device and
  // give theirs up for it, though the host have no room. False, and nothing has
  // changed, if idle pages or the host's room do not suffice.
  bool MakeRoom(int64_t count, int64_t restored);
  // Has idle pages leave a slab and gives that back, so that other pools can
  // have it. Returns how many left; 0 if there is no such slab, or no room.
  int64_t EmptySlab();
  // Gives a spilled page a promised frame.
  void Restore(KvPage* page);

  // Gives memory back that has no page, as far as promises allow.
  void ReturnEmptySlabs();
  bool is_empty() const {
    return frames_.is_empty() &&
           (host_frames_ == nullptr || host_frames_->is_empty());
  }

  SessionUsage::Pages counts() const;

 private:
  struct Held {
    KvPage* page;
    bool is_active;
  };
  void Drop(KvPage* page, bool is_active);
  int64_t HostRoom() const;
  // Promises frames there, and the spare one.
  bool ReserveOnHost(int64_t count);
  // The idle page leaves its frame, for one that is promised on the host.
  Frame* Spill(KvPage* page);
  void SetIdle(KvPage* page, bool is_idle);
  void PutHostFrame(Frame* frame);
  void AddMove(const Frame* from, const Frame* to, bool to_host);

  FramePool frames_;
  const std::unique_ptr<FramePool> host_frames_;  // null: nothing is spilled
  std::deque<KvPage> pages_;
  std::vector<KvPage*> unused_;  // of pages_
  std::vector<Held> held_;
  std::list<KvPage*> idle_;
  // With pages on the host one more frame is promised there: pages can then
  // change places with those on the device whatever others have of the host.
  bool has_spare_ = false;
  int64_t exchanges_ = 0;  // to be made by Restore
  std::vector<PageMove>& moves_;
  int64_t shared_ = 0;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_SESSIONS_PAGE_POOL_H_
