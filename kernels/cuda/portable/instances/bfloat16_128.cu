#include "kernels/cuda/portable/tensor_core_kernel.cuh"

namespace attention::cuda::portable {

const StreamingKernel kBFloat128 =
    DescribeTensorCore<TensorCoreTile<__nv_bfloat16, 128, 4, 2, 64, 2>>();

}  // namespace attention::cuda::portable
