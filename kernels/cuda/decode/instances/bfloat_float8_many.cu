#include "kernels/cuda/decode/gathered.cuh"

namespace attention::cuda::decode {

const AttendKernel kBFloatFloat8Many64 =
    DescribeGathered<AttendTile<__nv_bfloat16, true, true, 64, 4, 2>>();
const AttendKernel kBFloatFloat8Many128 =
    DescribeGathered<AttendTile<__nv_bfloat16, true, true, 128, 3, 2>>();
const AttendKernel kBFloatFloat8Many256 =
    DescribeGathered<AttendTile<__nv_bfloat16, true, true, 256, 3, 1>>();

}  // namespace attention::cuda::decode
