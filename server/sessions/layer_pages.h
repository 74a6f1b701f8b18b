// The page table of one layer: which pages have its tokens.
//
// Tables share pages after a fork. Whoever appends to a page that others have
// as well gets a copy first, so that a page is only ever written by one. Pages
// behind a sliding window are freed, but for those with sink tokens: the table
// has a hole there. A table that is put aside lets its pages leave the device.
#ifndef ATTENTION_SERVER_SESSIONS_LAYER_PAGES_H_
#define ATTENTION_SERVER_SESSIONS_LAYER_PAGES_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/mask.h"
#include "kernels/paged_params.h"
#include "server/sessions/page_pool.h"

namespace attention {

// What the layers of a session have in common.
struct LayerShape {
  int64_t page_tokens = 1;
  int64_t window_left = kUnlimitedWindow;
  int64_t sink_tokens = 0;
  // Appends up to this position find their pages reserved.
  int64_t reserved_tokens = 0;

  int64_t PagesFor(int64_t tokens) const {
    return (tokens + page_tokens - 1) / page_tokens;
  }
  // Pages that must be promised to a layer of that length; `tail_is_shared` if
  // its last page has to be copied before an append.
  int64_t PromiseFor(int64_t length, bool tail_is_shared) const;
  // Keys before `position` that a query there sees, but for sinks; at least the
  // last one, whose page the next token may have to go to.
  KeyRange SeenAt(int64_t position) const;
};

// Thread-compatible. `pool` and `shape` outlive it, but for the destructor:
// clear it before. `hold`, everywhere: pages are released later (see
// PagePool::Release).
class LayerPages {
 public:
  LayerPages(PagePool* pool, const LayerShape* shape)
      : pool_(*pool), shape_(*shape) {}
  LayerPages(const LayerPages&) = delete;
  LayerPages& operator=(const LayerPages&) = delete;

  int64_t length() const { return length_; }
  // Those that the window has not freed.
  int64_t resident_tokens() const {
    return length_ - (hole_end_ - hole_begin_) * shape_.page_tokens;
  }
  // [PagesFor(length())]; null in the hole.
  absl::Span<KvPage* const> pages() const { return pages_; }
  // Where they are; not of a table that is put aside.
  absl::Span<void* const> page_data() const { return page_data_; }
  int64_t promised() const { return promised_; }

  // Puts the table aside. Only Activate, or what shares, cuts or clears, may
  // follow.
  void Deactivate();
  bool is_active() const { return is_active_; }
  // Takes it back: its pages stay where they are from now on. Returns how many
  // have left the device: so many must be promised for Restore, which then
  // comes before all else, or Deactivate.
  int64_t Activate();
  void Restore();

  // Whether none of these keys has been freed.
  bool Has(KeyRange keys) const;
  // Whether the layer could be cut or forked there: all keys that the next
  // query needs are there.
  bool HasAllSeenAt(int64_t position) const {
    return Has(shape_.SeenAt(position));
  }
  // Whether the page that has the last of `position` tokens is not this layer's
  // alone.
  bool IsSharedAt(int64_t position) const;

  // As the pool has promised this many pages, for this layer.
  void AddPromise(int64_t count) { promised_ += count; }

  // How many more promises Append needs.
  int64_t MissingFor(int64_t count) const;
  // `count` (> 0) more tokens. Adds to `copies` the copy of a shared page, if
  // there must be one.
  void Append(int64_t count, std::vector<PageCopy>& copies, bool hold);

  // Frees the pages wholly before `position`, but for sinks.
  void FreeBefore(int64_t position, bool hold);
  // How many tokens that would free.
  int64_t TokensFreedBefore(int64_t position) const;

  // Pages from `position` on that no other table has: those that Cut frees.
  int64_t OwnPagesFrom(int64_t position) const;
  // Forgets the tokens from `position` on.
  void Cut(int64_t position);

  // Makes this, which is empty, have the first `position` tokens of `origin`.
  void ShareFrom(const LayerPages& origin, int64_t position);

  // Empties the table and takes its promise back.
  void Clear(bool hold);

 private:
  void Release(KvPage* page, bool hold) {
    if (page != nullptr) pool_.Release(page, is_active_, hold);
  }
  KvPage* TakePage();
  bool MustCopyTail() const {
    return length_ % shape_.page_tokens != 0 && pages_.back()->is_shared();
  }
  // Pages [begin, end) to be freed for that position; empty if begin >= end.
  KeyRange PagesToFree(int64_t position) const;

  PagePool& pool_;
  const LayerShape& shape_;
  int64_t length_ = 0;
  std::vector<KvPage*> pages_;
  bool is_active_ = true;
  std::vector<void*> page_data_;  // of pages_, for views; empty if not active
  // Pages [hole_begin_, hole_end_) have been freed.
  int64_t hole_begin_ = 0;
  int64_t hole_end_ = 0;
  int64_t promised_ = 0;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_SESSIONS_LAYER_PAGES_H_
