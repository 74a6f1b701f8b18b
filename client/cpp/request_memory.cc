#include "client/cpp/request_memory.h"

#include <sys/mman.h>

#include <cstring>

namespace attention {
namespace {

// malloc keeps what is smaller, and capacities are rounded up to it.
constexpr size_t kGranularity = size_t{256} << 10;
// From here on, huge pages are worth their waste.
constexpr size_t kHugePageThreshold = size_t{4} << 20;

void* Map(size_t capacity) {
  void* const data = mmap(nullptr, capacity, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  if (capacity >= kHugePageThreshold) {
    madvise(data, capacity, MADV_HUGEPAGE);  // a hint: it may fail
  }
  return data;
}

void Unmap(const std::multimap<size_t, void*>& buffers) {
  for (const auto& [capacity, data] : buffers) munmap(data, capacity);
}

}  // namespace

std::shared_ptr<RequestMemory> RequestMemory::Create(size_t max_cached_bytes) {
  return std::shared_ptr<RequestMemory>(new RequestMemory(max_cached_bytes));
}

RequestMemory::~RequestMemory() { Unmap(free_); }

grpc::Slice RequestMemory::Copy(const void* data, size_t bytes) {
  if (bytes < kGranularity) return grpc::Slice(data, bytes);
  const size_t capacity =
      (bytes + kGranularity - 1) / kGranularity * kGranularity;
  void* copy = TakeCached(capacity);
  if (copy == nullptr) copy = Map(capacity);
  if (copy == nullptr) return grpc::Slice(data, bytes);
  std::memcpy(copy, data, bytes);
  return grpc::Slice(copy, bytes, Release,
                     new Buffer{shared_from_this(), copy, capacity});
}

size_t RequestMemory::cached_bytes() const {
  absl::MutexLock lock(&mutex_);
  return cached_bytes_;
}

void RequestMemory::Release(void* buffer) {
  const std::unique_ptr<Buffer> owned(static_cast<Buffer*>(buffer));
  owned->memory->Keep(owned->data, owned->capacity);
}

void* RequestMemory::TakeCached(size_t capacity) {
  absl::MutexLock lock(&mutex_);
  const auto found = free_.find(capacity);
  if (found == free_.end()) return nullptr;
  void* const data = found->second;
  free_.erase(found);
  cached_bytes_ -= capacity;
  return data;
}

void RequestMemory::Keep(void* data, size_t capacity) {
  std::multimap<size_t, void*> dropped;
  {
    absl::MutexLock lock(&mutex_);
    if (cached_bytes_ + capacity > max_cached_bytes_) {
      // All of them: sizes that are not in use any more must not keep out those
      // that are.
      dropped.swap(free_);
      cached_bytes_ = 0;
    }
    if (capacity <= max_cached_bytes_) {
      free_.emplace(capacity, data);
      cached_bytes_ += capacity;
    } else {
      dropped.emplace(capacity, data);
    }
  }
  Unmap(dropped);
}

}  // namespace attention
