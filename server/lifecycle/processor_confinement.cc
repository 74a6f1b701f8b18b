#include "server/lifecycle/processor_confinement.h"

#include <algorithm>
#include <vector>

namespace attention {

ProcessorConfinement::ProcessorConfinement(int processor_count) {
  cpu_set_t allowed;
  // Fails where there are more processors than a cpu_set_t holds.
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  if (processor_count <= 0 || processor_count >= CPU_COUNT(&allowed)) return;
  std::vector<int> processors;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &allowed)) processors.push_back(i);
  }
  // Around the one that the thread is on: servers that share a machine would
  // otherwise all choose the same.
  const auto here = std::lower_bound(processors.begin(), processors.end(),
                                     std::max(sched_getcpu(), 0));
  const int first = static_cast<int>(here - processors.begin()) /
                    processor_count * processor_count;
  const int last_start = static_cast<int>(processors.size()) - processor_count;
  cpu_set_t chosen;
  CPU_ZERO(&chosen);
  for (int i = 0; i < processor_count; ++i) {
    CPU_SET(processors[std::min(first, last_start) + i], &chosen);
  }
  if (sched_setaffinity(0, sizeof(chosen), &chosen) == 0) previous_ = allowed;
}

ProcessorConfinement::~ProcessorConfinement() {
  if (previous_.has_value()) {
    sched_setaffinity(0, sizeof(*previous_), &*previous_);
  }
}

}  // namespace attention
