#include "kernels/cuda/sm90/float/float_kernel.cuh"

namespace attention::cuda::sm90 {

const PrefillKernel kTf32At64 =
    DescribeFloat<FloatTile<Precision::kTf32, 64, 2, 8>>();

}  // namespace attention::cuda::sm90
