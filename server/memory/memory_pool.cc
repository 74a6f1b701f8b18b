#include "server/memory/memory_pool.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace attention {
namespace {

constexpr size_t kSmallestClass = 4096;
// Larger sizes cannot be rounded up without overflow, nor exist.
constexpr size_t kLargestRequest = size_t{1} << 60;

// The smallest size class that holds `bytes`: a multiple of an eighth of the
// largest power of two in it.
size_t SizeClass(size_t bytes) {
  if (bytes <= kSmallestClass) return kSmallestClass;
  const size_t step = std::bit_floor(bytes - 1) / 8;
  return (bytes + step - 1) / step * step;
}

absl::Status Exhausted(const MemoryPool::Options& options, size_t bytes,
                       absl::string_view reason) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "memory pool \"", options.name, "\": cannot allocate ", bytes,
      " bytes with a budget of ", options.budget_bytes, ": ", reason));
}

}  // namespace

Block Block::Part(const std::shared_ptr<const Block>& whole, size_t offset,
                  size_t size) {
  Block part;
  if (size == 0) return part;
  part.whole_ = whole;
  part.data_ = static_cast<char*>(whole->data()) + offset;
  part.size_ = size;
  return part;
}

Block& Block::operator=(Block&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  pool_ = std::exchange(other.pool_, nullptr);
  whole_ = std::exchange(other.whole_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  capacity_ = std::exchange(other.capacity_, 0);
  return *this;
}

void Block::Reset() {
  if (pool_ != nullptr) pool_->Release(data_, capacity_);
  pool_ = nullptr;
  whole_.reset();
  data_ = nullptr;
  size_ = capacity_ = 0;
}

MemoryPool::MemoryPool(Options options, std::unique_ptr<Allocator> allocator)
    : options_(std::move(options)), allocator_(std::move(allocator)) {}

MemoryPool::~MemoryPool() { Trim(); }

absl::StatusOr<Block> MemoryPool::Allocate(size_t bytes) {
  if (bytes == 0) return Block();
  if (bytes > kLargestRequest) {
    return Exhausted(options_, bytes, "larger than any memory");
  }
  const size_t capacity = SizeClass(bytes);
  {
    absl::MutexLock lock(&mutex_);
    if (auto cached = free_.find(capacity); cached != free_.end()) {
      void* data = cached->second;
      free_.erase(cached);
      cached_bytes_ -= capacity;
      in_use_bytes_ += capacity;
      allocator_->SetUsable(data, bytes, capacity);
      return Block(this, data, bytes, capacity);
    }
    const size_t available =
        options_.budget_bytes - std::min(options_.budget_bytes, in_use_bytes_);
    if (capacity > available) {
      return Exhausted(options_, bytes,
                       absl::StrCat(in_use_bytes_, " bytes are in use"));
    }
    // Freed under the lock, so that memory that is on its way out is never
    // handed to somebody else as budget.
    TrimLocked(available - capacity);
    in_use_bytes_ += capacity;
  }
  // The budget is reserved; the allocator may be slow and is called unlocked.
  absl::StatusOr<void*> data = allocator_->Allocate(capacity);
  if (!data.ok()) {
    Trim();
    data = allocator_->Allocate(capacity);
  }
  if (!data.ok()) {
    absl::MutexLock lock(&mutex_);
    in_use_bytes_ -= capacity;
    return Exhausted(options_, bytes, data.status().message());
  }
  allocator_->SetUsable(*data, bytes, capacity);
  return Block(this, *data, bytes, capacity);
}

void MemoryPool::Release(void* data, size_t capacity) {
  allocator_->SetUsable(data, 0, capacity);
  {
    absl::MutexLock lock(&mutex_);
    if (capacity <= options_.max_cached_bytes &&
        cached_bytes_ <= options_.max_cached_bytes - capacity) {
      in_use_bytes_ -= capacity;
      cached_bytes_ += capacity;
      free_.emplace(capacity, data);
      return;
    }
  }
  // Counts as in use until it is gone.
  allocator_->Free(data, capacity);
  absl::MutexLock lock(&mutex_);
  in_use_bytes_ -= capacity;
}

void MemoryPool::Trim() {
  absl::MutexLock lock(&mutex_);
  TrimLocked(0);
}

void MemoryPool::TrimLocked(size_t bytes) {
  while (cached_bytes_ > bytes) {
    const auto largest = std::prev(free_.end());
    allocator_->Free(largest->second, largest->first);
    cached_bytes_ -= largest->first;
    free_.erase(largest);
  }
}

MemoryPool::Usage MemoryPool::usage() const {
  absl::MutexLock lock(&mutex_);
  return {in_use_bytes_, cached_bytes_, options_.budget_bytes};
}

}  // namespace attention
