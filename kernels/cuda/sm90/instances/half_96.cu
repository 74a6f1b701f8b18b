#include "kernels/cuda/sm90/prefill_kernel.cuh"

namespace attention::cuda::sm90 {

const PrefillKernel kHalf96 = Describe<PrefillTile<__half, 96, 96, 2, 128, 2>>();

}  // namespace attention::cuda::sm90
