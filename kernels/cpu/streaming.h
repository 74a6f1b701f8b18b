// Streaming (online-softmax) attention on the CPU.
#ifndef ATTENTION_KERNELS_CPU_STREAMING_H_
#define ATTENTION_KERNELS_CPU_STREAMING_H_

#include "kernels/attention_params.h"
#include "kernels/cpu/thread_pool.h"

namespace attention::cpu {

// As ComputeAttention with Algorithm::kStreaming. Keys are taken in tiles;
// nothing of size M x N is ever stored. Throws std::bad_alloc.
void ComputeStreaming(const AttentionParams& params, ThreadPool& pool);

}  // namespace attention::cpu

#endif  // ATTENTION_KERNELS_CPU_STREAMING_H_
