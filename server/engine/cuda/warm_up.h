// Loads kernels before the first request needs them.
#ifndef ATTENTION_SERVER_ENGINE_CUDA_WARM_UP_H_
#define ATTENTION_SERVER_ENGINE_CUDA_WARM_UP_H_

#include "absl/status/status.h"
#include "server/engine/batch_runner.h"

namespace attention {

// Computes a work of one token on `executor` for every data type, with head
// dimensions 64 and 128, causal and not: CUDA loads a kernel when it is
// launched for the first time. Nothing is counted in metrics. The first error.
absl::Status WarmUp(BatchExecutor& executor);

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_CUDA_WARM_UP_H_
