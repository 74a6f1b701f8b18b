#include "kernels/cuda/sm90/float8/float8_kernel.cuh"

namespace attention::cuda::sm90 {

const PrefillKernel kFloat8At128 = DescribeFloat8<Float8Tile<128>>();

}  // namespace attention::cuda::sm90
