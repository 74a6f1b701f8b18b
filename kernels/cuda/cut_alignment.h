// Where a sequence may be cut into parts.
#ifndef ATTENTION_KERNELS_CUDA_CUT_ALIGNMENT_H_
#define ATTENTION_KERNELS_CUDA_CUT_ALIGNMENT_H_

#include <cstdint>

namespace attention::cuda {

// Queries cut at multiples of this from the first one, and keys that no query of
// a part sees cut off at a multiple of it, leave every bit of the results as it
// is: all tiles of the kernels divide it.
inline constexpr int64_t kCutAlignment = 128;

}  // namespace attention::cuda

#endif  // ATTENTION_KERNELS_CUDA_CUT_ALIGNMENT_H_
