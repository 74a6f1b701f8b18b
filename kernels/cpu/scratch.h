// Memory beside the tensors.
#ifndef ATTENTION_KERNELS_CPU_SCRATCH_H_
#define ATTENTION_KERNELS_CPU_SCRATCH_H_

#include <cstddef>
#include <cstdint>
#include <new>

#include "hwy/aligned_allocator.h"

namespace attention::cpu {

// Uninitialised; begins on a cache line. Throws std::bad_alloc, as containers
// do: ComputeAttention turns both into a status.
inline hwy::AlignedFreeUniquePtr<float[]> AllocateFloats(int64_t count) {
  auto floats = hwy::AllocateAligned<float>(static_cast<size_t>(count));
  if (floats == nullptr) throw std::bad_alloc();
  return floats;
}

}  // namespace attention::cpu

#endif  // ATTENTION_KERNELS_CPU_SCRATCH_H_
