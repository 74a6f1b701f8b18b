#include "kernels/cuda/portable/fma.cuh"
#include "kernels/cuda/portable/streaming_kernel.cuh"

namespace attention::cuda::portable {

const StreamingKernel kFma64 =
    Describe<FmaThread<FmaTile<float, 64, 8, 8, 2>>>();
const StreamingKernel kFma128 =
    Describe<FmaThread<FmaTile<float, 128, 4, 8, 2>>>();
const StreamingKernel kFma256 =
    Describe<FmaThread<FmaTile<float, 256, 4, 4, 1>>>();

}  // namespace attention::cuda::portable
