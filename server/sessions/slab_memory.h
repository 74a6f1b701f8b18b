// The memory of one device that sessions have, in slabs that page pools carve
// their pages out of.
#ifndef ATTENTION_SERVER_SESSIONS_SLAB_MEMORY_H_
#define ATTENTION_SERVER_SESSIONS_SLAB_MEMORY_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/status/statusor.h"
#include "server/memory/memory_pool.h"

namespace attention {

// Slabs that come back are kept until they are given back to the pool: a batch
// under way may still read them, but later batches may have them for pages of
// any size. Thread-compatible.
class SlabMemory {
 public:
  // At most `budget_bytes` of `pool`, which outlives this object. Slabs are at
  // most an eighth of that, so that little of it is left over.
  SlabMemory(MemoryPool* pool, size_t budget_bytes, size_t slab_bytes)
      : pool_(*pool),
        budget_bytes_(budget_bytes),
        slab_bytes_(std::min(slab_bytes, budget_bytes / 8)) {}

  // How large the slabs for pages of that size are: usually all alike.
  size_t SlabBytesFor(size_t page_bytes) const {
    return page_bytes > slab_bytes_ ? page_bytes : slab_bytes_;
  }

  // How many more slabs are within the budget.
  int64_t RoomFor(size_t slab_bytes) const;

  // CACHE_FULL beyond the budget, or when the pool has none to give.
  absl::StatusOr<Block> Get(size_t slab_bytes);
  void Put(Block slab);
  // Gives all that came back to the pool. Nothing on the device may use them.
  void ReleaseSpare();

  size_t budget_bytes() const { return budget_bytes_; }
  // Those that came back included.
  size_t used_bytes() const { return used_bytes_; }

 private:
  MemoryPool& pool_;
  const size_t budget_bytes_;
  const size_t slab_bytes_;
  size_t used_bytes_ = 0;
  std::multimap<size_t, Block> spare_;  // by size
};

}  // namespace attention

#endif  // ATTENTION_SERVER_SESSIONS_SLAB_MEMORY_H_
