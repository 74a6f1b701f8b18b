// Attention to resident keys and values on the host's processors.
#ifndef ATTENTION_KERNELS_CPU_PAGED_H_
#define ATTENTION_KERNELS_CPU_PAGED_H_

#include "absl/status/status.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/paged_params.h"

namespace attention::cpu {

// Copies pages, then appends, then attends, on the pool's threads and the
// calling one; returns when done. The caller has validated the parameters
// (kernels/validation.h); pointers are host pointers, those of tensors aligned
// to their element type. Reads of pages only keys and values that a query sees:
// what else lies there changes nothing. The result does not depend on the
// number of threads, nor on the other sequences, nor on where pages lie.
//
// Memory as for ComputeAttention, and some 250 bytes a sequence.
// RESOURCE_EXHAUSTED when the system does not give that; results and the tokens
// to append are then undefined.
absl::Status ComputePaged(const PagedParams& params, ThreadPool& pool);

}  // namespace attention::cpu

#endif  // ATTENTION_KERNELS_CPU_PAGED_H_
