// Frames of one size: places in memory where a page of keys and values can lie.
//
// Of the free frames so many are promised to those who reserved them. Frames
// may be of any memory: nothing here touches what they hold.
#ifndef ATTENTION_SERVER_SESSIONS_FRAME_POOL_H_
#define ATTENTION_SERVER_SESSIONS_FRAME_POOL_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "server/memory/memory_pool.h"
#include "server/sessions/slab_memory.h"

namespace attention {

// Bytes from one frame to the next: pages are aligned to 256 bytes.
constexpr int64_t PageStride(int64_t page_bytes) {
  return (page_bytes + 255) / 256 * 256;
}

struct KvPage;
struct Slab;

struct Frame {
  void* data = nullptr;
  Slab* slab = nullptr;
  KvPage* idle_page = nullptr;  // that may leave it; see SetIdle
};

// Thread-compatible.
class FramePool {
 public:
  // `memory` outlives the pool.
  FramePool(int64_t page_bytes, SlabMemory* memory);
  // All frames are free.
  ~FramePool();

  // Bytes that a frame takes.
  int64_t frame_bytes() const { return stride_; }
  int64_t frames_per_slab() const { return frames_per_slab_; }
  size_t slab_bytes() const { return slab_bytes_; }

  // Promises `count` more frames, for Take. Otherwise nothing has changed:
  // CACHE_FULL, or REQUEST_TOO_LARGE when there will never be so many.
  absl::Status Reserve(int64_t count);
  // Whether the budget allows that, though memory may yet be refused.
  absl::Status CanReserve(int64_t count) const;
  // Takes back promises.
  void Unreserve(int64_t count) { reserved_ -= count; }
  // How many more the budget allows to promise.
  int64_t available() const;

  // A frame that has been promised.
  Frame* Take();
  void Put(Frame* frame);
  // Whether it is the first of its slab: what lies before it is another's.
  static bool StartsSlab(const Frame* frame);

  // What a frame that is not free has: null if it is not to leave.
  static void SetIdle(Frame* frame, KvPage* page);
  // The pages of a slab that would be empty without them, as few as possible,
  // if promises allow to do without it. Empty if there is none.
  std::vector<KvPage*> PagesToEmptySlab() const;
  // Gives slabs whose frames are all free back, as far as promises allow.
  void ReturnEmptySlabs();
  bool is_empty() const { return slabs_.empty() && reserved_ == 0; }

  int64_t used() const { return frame_count_ - free_; }
  int64_t reserved() const { return reserved_; }
  int64_t free() const { return free_ - reserved_; }  // and not promised

 private:
  // Slabs that `count` more promises need.
  int64_t SlabsFor(int64_t count) const;
  absl::Status Grow();

  const int64_t stride_;
  SlabMemory& memory_;
  const size_t slab_bytes_;
  const int64_t frames_per_slab_;
  uint64_t next_slab_number_ = 0;
  std::map<uint64_t, std::unique_ptr<Slab>> slabs_;  // by age, oldest first
  // Those with free frames. Frames are taken from the oldest, so that young
  // ones tend to become empty.
  std::map<uint64_t, Slab*> with_free_;
  int64_t frame_count_ = 0;
  int64_t free_ = 0;
  int64_t reserved_ = 0;
  int64_t empty_slab_count_ = 0;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_SESSIONS_FRAME_POOL_H_
