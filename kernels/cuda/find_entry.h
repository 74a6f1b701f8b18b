// Which of consecutive entries owns an index.
#ifndef ATTENTION_KERNELS_CUDA_FIND_ENTRY_H_
#define ATTENTION_KERNELS_CUDA_FIND_ENTRY_H_

#include <cstdint>

#include "kernels/host_device.h"

namespace attention::cuda {

// The last of `count` entries whose first(entry) is at most `index`. Entries
// that own nothing are never returned.
template <typename Entry, typename Index, typename First>
ATTENTION_HOST_DEVICE const Entry& FindEntry(const Entry* entries, Index count,
                                             Index index, First first) {
  Index low = 0;
  Index high = count - 1;
  while (low < high) {
    const Index middle = (low + high + 1) / 2;
    if (first(entries[middle]) <= index) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return entries[low];
}
template <typename Entry, typename Index>
ATTENTION_HOST_DEVICE const Entry& FindEntry(const Entry* entries, Index count,
                                             Index index,
                                             Index Entry::*first) {
  return FindEntry(entries, count, index,
                   [first](const Entry& entry) { return entry.*first; });
}

}  // namespace attention::cuda

#endif  // ATTENTION_KERNELS_CUDA_FIND_ENTRY_H_
