#include "tests/support/allocation_counter.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {
thread_local bool counting = false;
thread_local int64_t allocation_count = 0;
std::atomic<int64_t> all_allocations{0};

void* Allocate(size_t bytes, size_t alignment) {
  if (counting) ++allocation_count;
  all_allocations.fetch_add(1, std::memory_order_relaxed);
  if (bytes == 0) bytes = alignment;
  void* data = alignment <= alignof(std::max_align_t)
                   ? std::malloc(bytes)
                   : std::aligned_alloc(alignment, (bytes + alignment - 1) /
                                                       alignment * alignment);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}
}  // namespace

void* operator new(size_t bytes) { return Allocate(bytes, 1); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return Allocate(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete(void* data, size_t) noexcept { std::free(data); }
void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete(void* data, size_t, std::align_val_t) noexcept {
  std::free(data);
}

namespace attention {

AllocationCounter::AllocationCounter() {
  allocation_count = 0;
  counting = true;
}
AllocationCounter::~AllocationCounter() { counting = false; }
int64_t AllocationCounter::count() const { return allocation_count; }

int64_t AllocationsOfAllThreads() {
  return all_allocations.load(std::memory_order_relaxed);
}

}  // namespace attention
