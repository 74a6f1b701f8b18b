#include "kernels/cuda/sm90/prefill_kernel.cuh"

namespace attention::cuda::sm90 {

const PrefillKernel kHalf128Wide = Describe<PrefillTile<__half, 128, 128, 2, 176, 1>>();

}  // namespace attention::cuda::sm90
