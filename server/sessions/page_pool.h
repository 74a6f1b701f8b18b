// Pages of one size, counted by how many page tables have them.
//
// A page is free, or referenced by at least one table; of the free ones so many
// are promised to sessions that reserved them. Pages may be of any memory:
// nothing here touches what they hold.
#ifndef ATTENTION_SERVER_SESSIONS_PAGE_POOL_H_
#define ATTENTION_SERVER_SESSIONS_PAGE_POOL_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "server/memory/memory_pool.h"
#include "server/metrics/session_usage.h"
#include "server/sessions/slab_memory.h"

namespace attention {

// Bytes from one page to the next: pages are aligned to 256 bytes.
constexpr int64_t PageStride(int64_t page_bytes) {
  return (page_bytes + 255) / 256 * 256;
}

struct Slab;

struct KvPage {
  void* data = nullptr;
  Slab* slab = nullptr;
  int32_t reference_count = 0;

  bool is_shared() const { return reference_count > 1; }
};

// Thread-compatible.
class PagePool {
 public:
  // `memory` outlives the pool.
  PagePool(int64_t page_bytes, SlabMemory* memory);
  // All pages are free.
  ~PagePool();

  // Bytes that a page takes.
  int64_t page_bytes() const { return stride_; }
  int64_t pages_per_slab() const { return pages_per_slab_; }

  // Promises `count` more pages, for Take. Otherwise nothing has changed:
  // CACHE_FULL, or REQUEST_TOO_LARGE when there will never be so many.
  absl::Status Reserve(int64_t count);
  // Whether the budget allows that, though memory may yet be refused.
  absl::Status CanReserve(int64_t count) const;
  // Takes back promises.
  void Unreserve(int64_t count) { reserved_ -= count; }

  // A page that has been promised; its only reference is the caller's.
  KvPage* Take();
  // One reference more.
  void Share(KvPage* page);
  // One reference less: at once, or, if `hold`, from DropHeld on. Until then the
  // page is neither free nor, if two had it, the other's alone: a launch that is
  // being put together may read it for who had it, so nobody may write to it.
  void Release(KvPage* page, bool hold);
  void DropHeld();
  bool has_held() const { return !held_.empty(); }

  // Gives slabs whose pages are all free back, as far as promises allow.
  void ReturnEmptySlabs();
  bool is_empty() const { return slabs_.empty() && reserved_ == 0; }

  SessionUsage::Pages counts() const;

 private:
  // Slabs that `count` more promises need.
  int64_t SlabsFor(int64_t count) const;
  absl::Status Grow();
  void Drop(KvPage* page);
  void Free(KvPage* page);

  const int64_t stride_;
  SlabMemory& memory_;
  const size_t slab_bytes_;
  const int64_t pages_per_slab_;
  uint64_t next_slab_number_ = 0;
  std::map<uint64_t, std::unique_ptr<Slab>> slabs_;  // by age, oldest first
  // Those with free pages. Pages are taken from the oldest, so that young ones
  // tend to become empty.
  std::map<uint64_t, Slab*> with_free_;
  std::vector<KvPage*> held_;
  int64_t page_count_ = 0;
  int64_t free_ = 0;
  int64_t reserved_ = 0;
  int64_t shared_ = 0;
  int64_t empty_slab_count_ = 0;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_SESSIONS_PAGE_POOL_H_
