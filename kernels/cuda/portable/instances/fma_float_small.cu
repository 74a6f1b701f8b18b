#include "kernels/cuda/portable/fma.cuh"
#include "kernels/cuda/portable/streaming_kernel.cuh"

namespace attention::cuda::portable {

const StreamingKernel kFma64Small =
    Describe<FmaThread<FmaTile<float, 64, 4, 8, 3>>>();
const StreamingKernel kFma128Small =
    Describe<FmaThread<FmaTile<float, 128, 2, 4, 2>>>();
const StreamingKernel kFma256Small =
    Describe<FmaThread<FmaTile<float, 256, 1, 2, 2>>>();

}  // namespace attention::cuda::portable
