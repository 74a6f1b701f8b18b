#include "kernels/cuda/portable/streaming_kernel.cuh"
#include "kernels/cuda/portable/tensor_core.cuh"

namespace attention::cuda::portable {

const StreamingKernel kBFloat64 =
    Describe<TensorCoreWarp<TensorCoreTile<__nv_bfloat16, 64, 4, 2, 128, 2>>>();
const StreamingKernel kBFloat96 =
    Describe<TensorCoreWarp<TensorCoreTile<__nv_bfloat16, 96, 4, 2, 64, 2>>>();

}  // namespace attention::cuda::portable
