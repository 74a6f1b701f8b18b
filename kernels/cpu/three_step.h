// Attention in three steps with the weights materialised, on the CPU.
#ifndef ATTENTION_KERNELS_CPU_THREE_STEP_H_
#define ATTENTION_KERNELS_CPU_THREE_STEP_H_

#include "kernels/attention_params.h"
#include "kernels/cpu/thread_pool.h"

namespace attention::cpu {

// As ComputeAttention with Algorithm::kThreeStep: QK^T, softmax in place over
// whole rows, PV. It exists to return the weights, and as the baseline of the
// benchmarks. Rows longer than a panel of 6144 keys are taken panel by panel,
// and scores are computed a second time where weights are returned. Throws
// std::bad_alloc.
void ComputeThreeStep(const AttentionParams& params, ThreadPool& pool);

}  // namespace attention::cpu

#endif  // ATTENTION_KERNELS_CPU_THREE_STEP_H_
