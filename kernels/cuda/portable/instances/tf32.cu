#include "kernels/cuda/portable/tensor_core_kernel.cuh"

namespace attention::cuda::portable {

const StreamingKernel kTf32At64 =
    DescribeTensorCore<TensorCoreTile<float, 64, 4, 1, 32, 3>>();
const StreamingKernel kTf32At128 =
    DescribeTensorCore<TensorCoreTile<float, 128, 4, 1, 32, 3>>();
const StreamingKernel kTf32At256 =
    DescribeTensorCore<TensorCoreTile<float, 256, 4, 1, 16, 2>>();

}  // namespace attention::cuda::portable
