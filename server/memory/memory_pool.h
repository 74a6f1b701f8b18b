// Byte-budgeted, caching pools of host, pinned and device memory.
//
// A pool hands out Blocks: RAII owners of raw memory that return to the pool,
// which keeps them for the next request of a similar size (allocating pinned or
// device memory costs hundreds of microseconds). The budget bounds what is in
// use and cached together, whatever callers ask for. Sizes are rounded up to
// one of 8 classes per power of two, so less than 1/8 (or 4 KiB) is wasted, and
// a freed block serves later requests of its class only.
//
//   auto block = pool.Allocate(bytes);        // StatusOr<Block>
//   if (!block.ok()) return block.status();   // RESOURCE_EXHAUSTED: over
//   budget std::memcpy(block->data(), source, bytes);
//
// Thread-safe. A pool must outlive its Blocks.
#ifndef ATTENTION_SERVER_MEMORY_MEMORY_POOL_H_
#define ATTENTION_SERVER_MEMORY_MEMORY_POOL_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <memory_resource>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace attention {

// Where memory comes from. Implementations: HostAllocator here,
// PinnedAllocator and DeviceAllocator in server/engine/cuda.
class Allocator {
 public:
  virtual ~Allocator() = default;
  // At least `bytes` (> 0) bytes aligned to 256, or RESOURCE_EXHAUSTED.
  virtual absl::StatusOr<void*> Allocate(size_t bytes) = 0;
  virtual void Free(void* data, size_t bytes) = 0;
  // Tells that of an allocation of `bytes` only the first `usable_bytes` may be
  // touched from now on. Lets memory checkers find overruns and uses after
  // release in spite of caching.
  virtual void SetUsable(void* /*data*/, size_t /*usable_bytes*/,
                         size_t /*bytes*/) {}
};

// Page-aligned anonymous memory that goes back to the system when freed.
std::unique_ptr<Allocator> MakeHostAllocator();

class MemoryPool;

// Owns memory of a pool, alone or with others. Movable; empty when
// default-constructed, moved from, or of size 0. Contents are undefined until
// written.
class Block {
 public:
  // `size` bytes of `whole` from `offset` on. The memory returns to the pool
  // when the last part and the last pointer to `whole` are gone.
  static Block Part(const std::shared_ptr<const Block>& whole, size_t offset,
                    size_t size);

  Block() = default;
  Block(Block&& other) noexcept { *this = std::move(other); }
  Block& operator=(Block&& other) noexcept;
  ~Block() { Reset(); }

  void* data() const { return data_; }
  size_t size() const { return size_; }  // as asked for
  // Whether both are parts of one block.
  bool SharesMemoryWith(const Block& other) const {
    return whole_ != nullptr && whole_ == other.whole_;
  }
  void Reset();

 private:
  friend class MemoryPool;
  Block(MemoryPool* pool, void* data, size_t size, size_t capacity)
      : pool_(pool), data_(data), size_(size), capacity_(capacity) {}

  MemoryPool* pool_ = nullptr;  // null for a part
  std::shared_ptr<const Block> whole_;
  void* data_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

class MemoryPool {
 public:
  struct Options {
    // Label in metrics and messages: "host", "pinned" or "device".
    std::string name;
    // Most bytes in use and cached together.
    size_t budget_bytes = 0;
    // Most bytes kept for reuse. What is released beyond goes back at once.
    size_t max_cached_bytes = std::numeric_limits<size_t>::max();
  };

  struct Usage {
    size_t in_use_bytes = 0;
    size_t cached_bytes = 0;
    size_t budget_bytes = 0;
  };

  MemoryPool(Options options, std::unique_ptr<Allocator> allocator);
  ~MemoryPool();

  // RESOURCE_EXHAUSTED, naming the pool, the size and the budget, when over
  // budget even after the cache has been emptied, or when the allocator fails.
  // A size of 0 gives an empty Block.
  absl::StatusOr<Block> Allocate(size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  // Gives cached memory back to the allocator.
  void Trim() ABSL_LOCKS_EXCLUDED(mutex_);

  Usage usage() const ABSL_LOCKS_EXCLUDED(mutex_);
  const std::string& name() const { return options_.name; }

 private:
  friend class Block;
  void Release(void* data, size_t capacity) ABSL_LOCKS_EXCLUDED(mutex_);
  // Frees cached blocks, the largest first, until at most `bytes` are cached.
  void TrimLocked(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const std::unique_ptr<Allocator> allocator_;
  mutable absl::Mutex mutex_;
  // The nodes of free_, which come and go with every block.
  std::pmr::unsynchronized_pool_resource nodes_ ABSL_GUARDED_BY(mutex_);
  std::pmr::multimap<size_t, void*> free_ ABSL_GUARDED_BY(mutex_){
      &nodes_};  // by capacity
  size_t in_use_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t cached_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_MEMORY_MEMORY_POOL_H_
