#include "kernels/cuda/portable/tensor_core_kernel.cuh"

namespace attention::cuda::portable {

const StreamingKernel kBFloat192 =
    DescribeTensorCore<TensorCoreTile<__nv_bfloat16, 192, 8, 1, 64, 1>>();

}  // namespace attention::cuda::portable
