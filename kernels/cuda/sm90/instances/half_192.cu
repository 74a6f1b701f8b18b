#include "kernels/cuda/sm90/prefill_kernel.cuh"

namespace attention::cuda::sm90 {

const PrefillKernel kHalf192 = Describe<PrefillTile<__half, 192, 192, 2, 80, 2>>();

}  // namespace attention::cuda::sm90
