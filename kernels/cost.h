// How much work a computation is, for benchmarks, metrics and scheduling.
#ifndef ATTENTION_KERNELS_COST_H_
#define ATTENTION_KERNELS_COST_H_

#include <cstdint>

#include "kernels/attention_params.h"
#include "kernels/paged_params.h"

namespace attention {

// Number of (query, key) pairs that the mask leaves visible, for one head.
// Constant time.
int64_t VisiblePairCount(MaskKind mask, const Sequence& sequence);

// FLOPs of the two matrix products over visible pairs, 2 per multiply-add.
double AttentionFlops(const HeadConfig& config, const Sequence& sequence);

// AttentionFlops plus what else takes time, as the FLOPs of the same time: the
// softmax of each pair, and per head each key and each query row, which dominate
// where head dimensions or lengths are small. An estimate for bounding how long
// a computation occupies a device, not for rates.
double EffectiveFlops(const HeadConfig& config, const Sequence& sequence);

// The fewest bytes that must be moved: query, key, value and output once.
double AttentionBytes(const HeadConfig& config, const Sequence& sequence);

// The same of paged sequences. Bytes are those of the keys and values that some
// query sees, read once from their pages. Null pointers do not matter.
double PagedFlops(const PagedConfig& config, const PagedSequence& sequence);
double PagedBytes(const PagedConfig& config, const PagedSequence& sequence);

}  // namespace attention

#endif  // ATTENTION_KERNELS_COST_H_
