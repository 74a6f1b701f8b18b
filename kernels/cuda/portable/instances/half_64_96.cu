#include "kernels/cuda/portable/streaming_kernel.cuh"
#include "kernels/cuda/portable/tensor_core.cuh"

namespace attention::cuda::portable {

const StreamingKernel kHalf64 =
    Describe<TensorCoreWarp<TensorCoreTile<__half, 64, 4, 2, 128, 2>>>();
const StreamingKernel kHalf64Small =
    Describe<TensorCoreWarp<TensorCoreTile<__half, 64, 4, 1, 64, 2>>>();
const StreamingKernel kHalf96 =
    Describe<TensorCoreWarp<TensorCoreTile<__half, 96, 4, 2, 64, 2>>>();

}  // namespace attention::cuda::portable
