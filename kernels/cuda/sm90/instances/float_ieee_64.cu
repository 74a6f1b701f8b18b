#include "kernels/cuda/sm90/float/float_kernel.cuh"

namespace attention::cuda::sm90 {

const PrefillKernel kIeeeAt64 =
    DescribeFloat<FloatTile<Precision::kIeee, 64, 2, 8>>();

}  // namespace attention::cuda::sm90
