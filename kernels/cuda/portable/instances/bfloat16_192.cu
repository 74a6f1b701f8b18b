#include "kernels/cuda/portable/streaming_kernel.cuh"
#include "kernels/cuda/portable/tensor_core.cuh"

namespace attention::cuda::portable {

const StreamingKernel kBFloat192 =
    Describe<TensorCoreWarp<TensorCoreTile<__nv_bfloat16, 192, 4, 1, 64, 2>>>();

}  // namespace attention::cuda::portable
