#include "kernels/cuda/portable/fma_kernel.cuh"

namespace attention::cuda::portable {

const StreamingKernel kFma64 = DescribeFma<FmaTile<float, 64, 4, 8, 3>>();
const StreamingKernel kFma128 = DescribeFma<FmaTile<float, 128, 4, 8, 2>>();
const StreamingKernel kFma256 = DescribeFma<FmaTile<float, 256, 4, 4, 1>>();

}  // namespace attention::cuda::portable
