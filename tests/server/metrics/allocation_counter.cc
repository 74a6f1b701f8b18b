#include "tests/server/metrics/allocation_counter.h"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace {
thread_local bool counting = false;
thread_local int64_t allocation_count = 0;
}  // namespace

void* operator new(size_t bytes) {
  if (counting) ++allocation_count;
  void* data = std::malloc(bytes == 0 ? 1 : bytes);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete(void* data, size_t) noexcept { std::free(data); }

namespace attention {

AllocationCounter::AllocationCounter() {
  allocation_count = 0;
  counting = true;
}
AllocationCounter::~AllocationCounter() { counting = false; }
int64_t AllocationCounter::count() const { return allocation_count; }

}  // namespace attention
