// Where a sequence may be cut into parts.
#ifndef ATTENTION_KERNELS_CUDA_CUT_ALIGNMENT_H_
#define ATTENTION_KERNELS_CUDA_CUT_ALIGNMENT_H_

#include <cstdint>

namespace attention::cuda {

// Queries cut at multiples of this from the first one into parts of at least as
// many, and keys that no query of a part sees cut off at a multiple of it, leave
// every bit of the results as it is: a row's result depends on where steps of
// keys begin, which is the same for all rows, and not on the rows beside it.
inline constexpr int64_t kCutAlignment = 128;

// Sequences of at most so many queries may have their keys cut into chunks, so
// that their bits are not those of the same rows in a longer one.
inline constexpr int64_t kMaxChunkedQueries = 64;
static_assert(kMaxChunkedQueries < kCutAlignment);

}  // namespace attention::cuda

#endif  // ATTENTION_KERNELS_CUDA_CUT_ALIGNMENT_H_
