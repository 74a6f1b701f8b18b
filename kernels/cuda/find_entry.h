// Which of consecutive entries owns an index.
#ifndef ATTENTION_KERNELS_CUDA_FIND_ENTRY_H_
#define ATTENTION_KERNELS_CUDA_FIND_ENTRY_H_

#include <cstdint>

#include "kernels/host_device.h"

namespace attention::cuda {

// The last of `count` entries whose `first` is at most `index`. Entries that
// own nothing are never returned.
template <typename Entry>
ATTENTION_HOST_DEVICE const Entry& FindEntry(const Entry* entries,
                                             int64_t count, int64_t index,
                                             int64_t Entry::*first) {
  int64_t low = 0;
  int64_t high = count - 1;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (entries[middle].*first <= index) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return entries[low];
}

}  // namespace attention::cuda

#endif  // ATTENTION_KERNELS_CUDA_FIND_ENTRY_H_
