#include "kernels/cuda/portable/tensor_core_kernel.cuh"

namespace attention::cuda::portable {

const StreamingKernel kHalf64 =
    DescribeTensorCore<TensorCoreTile<__half, 64, 4, 2, 64, 2>>();
const StreamingKernel kHalf96 =
    DescribeTensorCore<TensorCoreTile<__half, 96, 4, 2, 64, 2>>();

}  // namespace attention::cuda::portable
