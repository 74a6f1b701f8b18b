#include "kernels/cuda/portable/streaming_kernel.cuh"
#include "kernels/cuda/portable/tensor_core.cuh"

namespace attention::cuda::portable {

const StreamingKernel kHalf128 =
    Describe<TensorCoreWarp<TensorCoreTile<__half, 128, 4, 2, 64, 2>>>();
const StreamingKernel kHalf128Small =
    Describe<TensorCoreWarp<TensorCoreTile<__half, 128, 4, 1, 64, 2>>>();

}  // namespace attention::cuda::portable
