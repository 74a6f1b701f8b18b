#include "kernels/cuda/portable/streaming_kernel.cuh"
#include "kernels/cuda/portable/tensor_core.cuh"

namespace attention::cuda::portable {

const StreamingKernel kTf32At64 =
    Describe<TensorCoreWarp<TensorCoreTile<float, 64, 4, 2, 64, 2>>>();
const StreamingKernel kTf32At128 =
    Describe<TensorCoreWarp<TensorCoreTile<float, 128, 4, 2, 32, 2>>>();
const StreamingKernel kTf32At128Small =
    Describe<TensorCoreWarp<TensorCoreTile<float, 128, 4, 1, 32, 3>>>();
const StreamingKernel kTf32At256 =
    Describe<TensorCoreWarp<TensorCoreTile<float, 256, 8, 1, 32, 1>>>();
const StreamingKernel kTf32At256Small =
    Describe<TensorCoreWarp<TensorCoreTile<float, 256, 4, 1, 16, 2>>>();

}  // namespace attention::cuda::portable
