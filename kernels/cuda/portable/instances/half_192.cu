#include "kernels/cuda/portable/streaming_kernel.cuh"
#include "kernels/cuda/portable/tensor_core.cuh"

namespace attention::cuda::portable {

const StreamingKernel kHalf192 =
    Describe<TensorCoreWarp<TensorCoreTile<__half, 192, 4, 1, 64, 2>>>();

}  // namespace attention::cuda::portable
