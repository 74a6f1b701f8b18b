#include "kernels/cpu/attention_cpu.h"

#include <new>

#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/streaming.h"
#include "kernels/cpu/three_step.h"

namespace attention::cpu {

absl::Status ComputeAttention(const AttentionParams& params, ThreadPool& pool) {
  // Memory is taken between parallel loops only, on this thread.
  try {
    switch (params.config.algorithm) {
      case Algorithm::kStreaming:
        ComputeStreaming(params, pool);
        break;
      case Algorithm::kThreeStep:
        ComputeThreeStep(params, pool);
        break;
    }
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        "no memory for the scratch space of the computation");
  }
  return absl::OkStatus();
}

const char* InstructionSet() {
  const int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  return hwy::TargetName(targets & -targets);  // the lowest bit is the best
}

}  // namespace attention::cpu
