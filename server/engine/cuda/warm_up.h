// Loads kernels before the first request needs them.
#ifndef ATTENTION_SERVER_ENGINE_CUDA_WARM_UP_H_
#define ATTENTION_SERVER_ENGINE_CUDA_WARM_UP_H_

#include "absl/status/status.h"
#include "server/engine/batch_runner.h"
#include "server/memory/memory_pool.h"

namespace attention {

// Computes works of one head on `executor` for every data type, with head
// dimensions 64 and 128: a token, causal and not, and one and many queries on
// resident keys of either storage type, in a page of `page_pool`. CUDA loads a
// kernel when it is launched for the first time. Nothing is counted in metrics.
// The first error.
absl::Status WarmUp(BatchExecutor& executor, MemoryPool& page_pool);

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_CUDA_WARM_UP_H_
