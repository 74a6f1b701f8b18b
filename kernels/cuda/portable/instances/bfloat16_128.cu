#include "kernels/cuda/portable/streaming_kernel.cuh"
#include "kernels/cuda/portable/tensor_core.cuh"

namespace attention::cuda::portable {

const StreamingKernel kBFloat128 =
    Describe<TensorCoreWarp<TensorCoreTile<__nv_bfloat16, 128, 4, 2, 64, 2>>>();

}  // namespace attention::cuda::portable
