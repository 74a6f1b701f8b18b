#include "kernels/cuda/sm90/prefill_kernel.cuh"

namespace attention::cuda::sm90 {

const PrefillKernel kHalf256 = Describe<PrefillTile<__half, 256, 256, 2, 80, 1>>();

}  // namespace attention::cuda::sm90
