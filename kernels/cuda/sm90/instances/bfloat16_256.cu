#include "kernels/cuda/sm90/prefill_kernel.cuh"

namespace attention::cuda::sm90 {

const PrefillKernel kBFloat256 = Describe<PrefillTile<__nv_bfloat16, 256, 256, 2, 80, 1>>();

}  // namespace attention::cuda::sm90
