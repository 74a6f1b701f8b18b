// Attention on the host's processors: picks the implementation and runs it.
#ifndef ATTENTION_KERNELS_CPU_ATTENTION_CPU_H_
#define ATTENTION_KERNELS_CPU_ATTENTION_CPU_H_

#include "absl/status/status.h"
#include "kernels/attention_params.h"
#include "kernels/cpu/thread_pool.h"

namespace attention::cpu {

// Computes on the pool's threads and the calling one, and returns when done.
// The caller has validated the parameters (kernels/validation.h); pointers are
// host pointers, aligned to their element type. Writes every element of every
// sequence's output (and log_sum_exp and weights where not null); touches
// nothing else. The result does not depend on the number of threads nor on the
// other sequences. Precision::kTf32 computes full fp32 products.
//
// Memory beside the tensors does not grow with the shapes: at most some 2 MiB a
// thread and 36 MiB together. RESOURCE_EXHAUSTED when the system does not give
// that; results are then undefined.
absl::Status ComputeAttention(const AttentionParams& params, ThreadPool& pool);

// The instruction set that run-time dispatch chose, e.g. "AVX3".
const char* InstructionSet();

}  // namespace attention::cpu

#endif  // ATTENTION_KERNELS_CPU_ATTENTION_CPU_H_
