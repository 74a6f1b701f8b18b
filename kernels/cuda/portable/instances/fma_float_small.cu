#include "kernels/cuda/portable/fma_kernel.cuh"

namespace attention::cuda::portable {

const StreamingKernel kFma128Small = DescribeFma<FmaTile<float, 128, 2, 4, 2>>();
const StreamingKernel kFma256Small = DescribeFma<FmaTile<float, 256, 1, 2, 2>>();

}  // namespace attention::cuda::portable
