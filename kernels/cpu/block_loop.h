// The loop that all CPU computations share: deals the blocks of a batch to the
// threads of a pool, each with scratch memory of its own.
#ifndef ATTENTION_KERNELS_CPU_BLOCK_LOOP_H_
#define ATTENTION_KERNELS_CPU_BLOCK_LOOP_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "kernels/attention_params.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/thread_pool.h"

namespace attention::cpu {

struct BlockLoop {
  MaskOf mask_of;
  int64_t rows_per_block;
  int64_t scratch_floats;  // per thread

  // Computes a block in the thread's `scratch`. A block that does not cover its
  // rows' keys writes to its place in `partials`.
  absl::FunctionRef<void(const Block& block, float* scratch, float* partials)>
      compute;
  // Makes the result of row `r` of blocks that share rows from their partial
  // results. Null: keys are never split.
  void (*merge_row)(const HeadConfig& config, const Block* begin,
                    const Block* end, int64_t r, const float* partials);
};

// Throws std::bad_alloc.
void RunBlockLoop(const AttentionParams& params, const BlockLoop& loop,
                  ThreadPool& pool);

}  // namespace attention::cpu

#endif  // ATTENTION_KERNELS_CPU_BLOCK_LOOP_H_
