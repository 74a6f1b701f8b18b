// Pages of resident keys and values on their way between a GPU and the host.
#ifndef ATTENTION_SERVER_ENGINE_CUDA_PAGE_MOVES_H_
#define ATTENTION_SERVER_ENGINE_CUDA_PAGE_MOVES_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/engine/cuda/cuda_runtime.h"
#include "server/engine/kv_cache.h"

namespace attention {

// Enqueues the moves, whose host memory is pinned, in their order.
absl::Status EnqueueMoves(CudaRuntime& runtime,
                          absl::Span<const PageMove> moves,
                          CudaRuntime::Stream stream);

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_CUDA_PAGE_MOVES_H_
