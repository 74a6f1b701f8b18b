#include "kernels/cuda/portable/streaming_kernel.cuh"
#include "kernels/cuda/portable/tensor_core.cuh"

namespace attention::cuda::portable {

const StreamingKernel kHalf256 =
    Describe<TensorCoreWarp<TensorCoreTile<__half, 256, 4, 1, 64, 2>>>();
const StreamingKernel kHalf256Small =
    Describe<TensorCoreWarp<TensorCoreTile<__half, 256, 4, 1, 16, 2>>>();

}  // namespace attention::cuda::portable
