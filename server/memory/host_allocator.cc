#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/base/config.h"
#include "absl/strings/str_cat.h"
#include "server/memory/memory_pool.h"

#ifdef ABSL_HAVE_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

namespace attention {
namespace {

// Large blocks on huge pages: a fault per 4 KiB costs more than the copy that
// causes it. Smaller ones would waste most of a huge page.
constexpr size_t kHugePageThreshold = size_t{4} << 20;

size_t RoundUpToPage(size_t bytes) {
  static const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

class HostAllocator : public Allocator {
 public:
  absl::StatusOr<void*> Allocate(size_t bytes) override {
    const size_t mapped = RoundUpToPage(bytes);
    void* data = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
      return absl::ResourceExhaustedError(
          absl::StrCat("mmap: ", std::strerror(errno)));
    }
    if (mapped >= kHugePageThreshold) {
      madvise(data, mapped, MADV_HUGEPAGE);  // a hint: it may fail
    }
    return data;
  }

  void Free(void* data, size_t bytes) override {
    SetUsable(data, bytes, bytes);
    munmap(data, RoundUpToPage(bytes));
  }

  void SetUsable([[maybe_unused]] void* data,
                 [[maybe_unused]] size_t usable_bytes,
                 [[maybe_unused]] size_t bytes) override {
#ifdef ABSL_HAVE_ADDRESS_SANITIZER
    ASAN_UNPOISON_MEMORY_REGION(data, usable_bytes);
    ASAN_POISON_MEMORY_REGION(static_cast<char*>(data) + usable_bytes,
                              bytes - usable_bytes);
#endif
  }
};

}  // namespace

std::unique_ptr<Allocator> MakeHostAllocator() {
  return std::make_unique<HostAllocator>();
}

}  // namespace attention
