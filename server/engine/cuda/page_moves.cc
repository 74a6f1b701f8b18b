#include "server/engine/cuda/page_moves.h"

namespace attention {

absl::Status EnqueueMoves(CudaRuntime& runtime,
                          absl::Span<const PageMove> moves,
                          CudaRuntime::Stream stream) {
  for (const PageMove& move : moves) {
    absl::Status status =
        move.to_host
            ? runtime.CopyToHost(move.to, move.from, move.bytes, stream)
            : runtime.CopyToDevice(move.to, move.from, move.bytes, stream);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace attention
