#include "kernels/cuda/sm90/float/float_kernel.cuh"

namespace attention::cuda::sm90 {

const PrefillKernel kIeeeAt128 =
    DescribeFloat<FloatTile<Precision::kIeee, 128, 1, 4>>();

}  // namespace attention::cuda::sm90
