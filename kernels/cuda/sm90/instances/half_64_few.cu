#include "kernels/cuda/sm90/prefill_kernel.cuh"

namespace attention::cuda::sm90 {

const PrefillKernel kHalf64Few = Describe<PrefillTile<__half, 64, 64, 2, 128, 2>>();

}  // namespace attention::cuda::sm90
