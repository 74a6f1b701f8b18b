#include "kernels/cuda/portable/fma.cuh"
#include "kernels/cuda/portable/streaming_kernel.cuh"

namespace attention::cuda::portable {

const StreamingKernel kFmaBFloat64 =
    Describe<FmaThread<FmaTile<__nv_bfloat16, 64, 4, 8, 3>>>();
const StreamingKernel kFmaBFloat128 =
    Describe<FmaThread<FmaTile<__nv_bfloat16, 128, 2, 4, 2>>>();
const StreamingKernel kFmaBFloat256 =
    Describe<FmaThread<FmaTile<__nv_bfloat16, 256, 1, 2, 2>>>();

}  // namespace attention::cuda::portable
