#include "client/loadtest/tensor_memory.h"

namespace attention::loadtest {

absl::StatusOr<std::unique_ptr<TensorMemory>> MakeCudaMemory(Client&, size_t,
                                                             int) {
  return absl::UnimplementedError(
      "--transport=cuda_ipc: this build has no CUDA; configure with "
      "-DATTENTION_CUDA=ON");
}

}  // namespace attention::loadtest
