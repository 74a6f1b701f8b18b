#include "server/engine/cuda/cuda_runtime.h"

namespace attention {

absl::StatusOr<CudaRuntime*> SystemCudaRuntime() {
  return absl::FailedPreconditionError(
      "this build has no CUDA backend; configure with -DATTENTION_CUDA=ON");
}

}  // namespace attention
