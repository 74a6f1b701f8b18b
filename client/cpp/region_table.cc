#include "client/cpp/region_table.h"

#include <sys/random.h>

#include <cerrno>
#include <cstdint>

namespace attention {
namespace {

constexpr size_t kTokenBytes = 16;

}  // namespace

std::string RandomToken() {
  std::string token(kTokenBytes, '\0');
  // Requests as small as this are never cut short; before the system has enough
  // randomness, early in its start, a signal may interrupt the wait for it.
  while (getrandom(token.data(), token.size(), 0) < 0 && errno == EINTR) {
  }
  return token;
}

void RegionTable::Add(const void* data, size_t size_bytes,
                      const std::string& name, bool in_gpu_memory) {
  absl::MutexLock lock(&mutex_);
  entries_[static_cast<const char*>(data)] = {size_bytes, name, in_gpu_memory};
}

void RegionTable::Remove(const void* data) {
  absl::MutexLock lock(&mutex_);
  entries_.erase(static_cast<const char*>(data));
}

std::optional<v1::RegionReference> RegionTable::Find(const void* data,
                                                     size_t size_bytes) const {
  const char* const begin = static_cast<const char*>(data);
  absl::MutexLock lock(&mutex_);
  auto it = entries_.upper_bound(begin);
  if (it == entries_.begin()) return std::nullopt;
  const auto& [region, entry] = *--it;
  const size_t offset = begin - region;
  if (offset > entry.size_bytes || size_bytes > entry.size_bytes - offset) {
    return std::nullopt;
  }
  v1::RegionReference reference;
  reference.set_region_name(entry.name);
  reference.set_byte_offset(static_cast<int64_t>(offset));
  reference.set_byte_size(static_cast<int64_t>(size_bytes));
  return reference;
}

bool RegionTable::IsGpuMemory(const void* data) const {
  const char* const begin = static_cast<const char*>(data);
  absl::MutexLock lock(&mutex_);
  auto it = entries_.upper_bound(begin);
  if (it == entries_.begin()) return false;
  const auto& [region, entry] = *--it;
  return entry.in_gpu_memory &&
         static_cast<size_t>(begin - region) < entry.size_bytes;
}

}  // namespace attention
