#include "kernels/cuda/portable/tensor_core_kernel.cuh"

namespace attention::cuda::portable {

const StreamingKernel kHalf128 =
    DescribeTensorCore<TensorCoreTile<__half, 128, 4, 2, 64, 2>>();
const StreamingKernel kHalf128Small =
    DescribeTensorCore<TensorCoreTile<__half, 128, 4, 1, 64, 2>>();

}  // namespace attention::cuda::portable
