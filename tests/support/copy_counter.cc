#include "tests/support/copy_counter.h"

#include <atomic>
#include <cstddef>

namespace {

constexpr size_t kCountedBytes = 1024;

std::atomic<int64_t> copied_bytes{0};

using Word = uint64_t __attribute__((may_alias, aligned(1)));

// Volatile, or the compiler would make calls to memmove out of the loops.
void* Copy(void* to, const void* from, size_t bytes) {
  if (bytes >= kCountedBytes) {
    copied_bytes.fetch_add(static_cast<int64_t>(bytes),
                           std::memory_order_relaxed);
  }
  auto* t = static_cast<volatile char*>(to);
  auto* f = static_cast<const volatile char*>(from);
  if (t < f || t >= f + bytes) {
    for (; bytes >= sizeof(Word); bytes -= sizeof(Word)) {
      *reinterpret_cast<volatile Word*>(t) =
          *reinterpret_cast<const volatile Word*>(f);
      t += sizeof(Word);
      f += sizeof(Word);
    }
    for (; bytes > 0; --bytes) *t++ = *f++;
  } else {
    for (; bytes > 0; --bytes) t[bytes - 1] = f[bytes - 1];
  }
  return to;
}

}  // namespace

extern "C" {
void* memcpy(void* to, const void* from, size_t bytes) noexcept {
  return Copy(to, from, bytes);
}
void* memmove(void* to, const void* from, size_t bytes) noexcept {
  return Copy(to, from, bytes);
}
// What distributions compile calls into where they know the size of `to`.
void* __memcpy_chk(void* to, const void* from, size_t bytes, size_t) noexcept {
  return Copy(to, from, bytes);
}
void* __memmove_chk(void* to, const void* from, size_t bytes, size_t) noexcept {
  return Copy(to, from, bytes);
}
}

namespace attention {

int64_t CopiedBytes() { return copied_bytes.load(std::memory_order_relaxed); }

}  // namespace attention
