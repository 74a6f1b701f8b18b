#include "kernels/cuda/portable/streaming_kernel.cuh"
#include "kernels/cuda/portable/tensor_core.cuh"

namespace attention::cuda::portable {

const StreamingKernel kBFloat256 =
    Describe<TensorCoreWarp<TensorCoreTile<__nv_bfloat16, 256, 4, 1, 64, 2>>>();
const StreamingKernel kBFloat256Small =
    Describe<TensorCoreWarp<TensorCoreTile<__nv_bfloat16, 256, 4, 1, 16, 2>>>();

}  // namespace attention::cuda::portable
