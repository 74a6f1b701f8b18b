#include "kernels/cuda/sm90/prefill_kernel.cuh"

namespace attention::cuda::sm90 {

const PrefillKernel kBFloat64 = Describe<PrefillTile<__nv_bfloat16, 64, 64, 3, 128, 2>>();

}  // namespace attention::cuda::sm90
