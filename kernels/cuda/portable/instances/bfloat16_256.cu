#include "kernels/cuda/portable/tensor_core_kernel.cuh"

namespace attention::cuda::portable {

const StreamingKernel kBFloat256 =
    DescribeTensorCore<TensorCoreTile<__nv_bfloat16, 256, 8, 1, 64, 1>>();
const StreamingKernel kBFloat256Small =
    DescribeTensorCore<TensorCoreTile<__nv_bfloat16, 256, 4, 1, 16, 2>>();

}  // namespace attention::cuda::portable
