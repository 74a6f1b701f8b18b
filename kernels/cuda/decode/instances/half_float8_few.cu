#include "kernels/cuda/decode/gathered.cuh"

namespace attention::cuda::decode {

const AttendKernel kHalfFloat8Few64 =
    DescribeGathered<AttendTile<__half, true, false, 64, 4, 3>>();
const AttendKernel kHalfFloat8Few128 =
    DescribeGathered<AttendTile<__half, true, false, 128, 3, 2>>();
const AttendKernel kHalfFloat8Few256 =
    DescribeGathered<AttendTile<__half, true, false, 256, 3, 1>>();

}  // namespace attention::cuda::decode
