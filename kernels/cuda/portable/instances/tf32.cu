#include "kernels/cuda/portable/streaming_kernel.cuh"
#include "kernels/cuda/portable/tensor_core.cuh"

namespace attention::cuda::portable {

const StreamingKernel kTf32At64 =
    Describe<TensorCoreWarp<TensorCoreTile<float, 64, 4, 1, 32, 3>>>();
const StreamingKernel kTf32At128 =
    Describe<TensorCoreWarp<TensorCoreTile<float, 128, 4, 1, 32, 3>>>();
const StreamingKernel kTf32At256 =
    Describe<TensorCoreWarp<TensorCoreTile<float, 256, 4, 1, 16, 2>>>();

}  // namespace attention::cuda::portable
