#include "server/engine/host_properties.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace attention {
namespace {

// Of control groups version 2 and 1, as seen from within a container. A file
// that is absent, or says "max", sets no limit.
constexpr const char* kLimitFiles[] = {
    "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"};

}  // namespace

int UsableProcessorCount() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

size_t HostMemoryBytes() {
  size_t bytes = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) *
                 static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (const char* path : kLimitFiles) {
    size_t limit = 0;
    if (std::ifstream(path) >> limit) bytes = std::min(bytes, limit);
  }
  return bytes;
}

}  // namespace attention
