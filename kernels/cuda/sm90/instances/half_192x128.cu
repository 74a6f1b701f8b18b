#include "kernels/cuda/sm90/prefill_kernel.cuh"

namespace attention::cuda::sm90 {

const PrefillKernel kHalf192x128 = Describe<PrefillTile<__half, 192, 128, 2, 96, 2>>();

}  // namespace attention::cuda::sm90
