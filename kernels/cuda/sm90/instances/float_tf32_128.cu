#include "kernels/cuda/sm90/float/float_kernel.cuh"

namespace attention::cuda::sm90 {

const PrefillKernel kTf32At128 =
    DescribeFloat<FloatTile<Precision::kTf32, 128, 2, 4>>();

}  // namespace attention::cuda::sm90
