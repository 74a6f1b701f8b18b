#include "kernels/cuda/decode/gathered.cuh"

namespace attention::cuda::decode {

const AttendKernel kHalfFew64 =
    DescribeGathered<AttendTile<__half, false, false, 64, 3, 3>>();
const AttendKernel kHalfFew128 =
    DescribeGathered<AttendTile<__half, false, false, 128, 2, 2>>();
const AttendKernel kHalfFew256 =
    DescribeGathered<AttendTile<__half, false, false, 256, 2, 1>>();

}  // namespace attention::cuda::decode
