#include "kernels/cuda/decode/gathered.cuh"

namespace attention::cuda::decode {

const AttendKernel kHalfFloat8Many64 =
    DescribeGathered<AttendTile<__half, true, true, 64, 4, 2>>();
const AttendKernel kHalfFloat8Many128 =
    DescribeGathered<AttendTile<__half, true, true, 128, 3, 2>>();
const AttendKernel kHalfFloat8Many256 =
    DescribeGathered<AttendTile<__half, true, true, 256, 3, 1>>();

}  // namespace attention::cuda::decode
