#include "kernels/cuda/portable/fma_kernel.cuh"

namespace attention::cuda::portable {

const StreamingKernel kFmaBFloat64 = DescribeFma<FmaTile<__nv_bfloat16, 64, 4, 8, 3>>();
const StreamingKernel kFmaBFloat128 = DescribeFma<FmaTile<__nv_bfloat16, 128, 2, 4, 2>>();
const StreamingKernel kFmaBFloat256 = DescribeFma<FmaTile<__nv_bfloat16, 256, 1, 2, 2>>();

}  // namespace attention::cuda::portable
