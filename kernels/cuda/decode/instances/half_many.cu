#include "kernels/cuda/decode/gathered.cuh"

namespace attention::cuda::decode {

const AttendKernel kHalfMany64 =
    DescribeGathered<AttendTile<__half, false, true, 64, 3, 2>>();
const AttendKernel kHalfMany128 =
    DescribeGathered<AttendTile<__half, false, true, 128, 2, 2>>();
const AttendKernel kHalfMany256 =
    DescribeGathered<AttendTile<__half, false, true, 256, 2, 1>>();

}  // namespace attention::cuda::decode
