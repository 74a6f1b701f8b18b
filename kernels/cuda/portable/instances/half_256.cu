#include "kernels/cuda/portable/tensor_core_kernel.cuh"

namespace attention::cuda::portable {

const StreamingKernel kHalf256 =
    DescribeTensorCore<TensorCoreTile<__half, 256, 8, 1, 64, 1>>();
const StreamingKernel kHalf256Small =
    DescribeTensorCore<TensorCoreTile<__half, 256, 4, 1, 16, 2>>();

}  // namespace attention::cuda::portable
