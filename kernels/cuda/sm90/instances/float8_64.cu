#include "kernels/cuda/sm90/float8/float8_kernel.cuh"

namespace attention::cuda::sm90 {

const PrefillKernel kFloat8At64 = DescribeFloat8<Float8Tile<64>>();

}  // namespace attention::cuda::sm90
