#include "kernels/cuda/portable/streaming_kernel.cuh"
#include "kernels/cuda/portable/tensor_core.cuh"

namespace attention::cuda::portable {

const StreamingKernel kHalf192 =
    Describe<TensorCoreWarp<TensorCoreTile<__half, 192, 8, 1, 64, 1>>>();

}  // namespace attention::cuda::portable
