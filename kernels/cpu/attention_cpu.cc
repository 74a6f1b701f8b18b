#include "kernels/cpu/attention_cpu.h"

#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/streaming.h"
#include "kernels/cpu/three_step.h"

namespace attention::cpu {

void ComputeAttention(const AttentionParams& params, ThreadPool& pool) {
  switch (params.config.algorithm) {
    case Algorithm::kStreaming:
      return ComputeStreaming(params, pool);
    case Algorithm::kThreeStep:
      return ComputeThreeStep(params, pool);
  }
}

const char* InstructionSet() {
  const int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  return hwy::TargetName(targets & -targets);  // the lowest bit is the best
}

}  // namespace attention::cpu
