#include "kernels/cuda/decode/gathered.cuh"

namespace attention::cuda::decode {

const AttendKernel kBFloatFloat8Few64 =
    DescribeGathered<AttendTile<__nv_bfloat16, true, false, 64, 4, 3>>();
const AttendKernel kBFloatFloat8Few128 =
    DescribeGathered<AttendTile<__nv_bfloat16, true, false, 128, 3, 2>>();
const AttendKernel kBFloatFloat8Few256 =
    DescribeGathered<AttendTile<__nv_bfloat16, true, false, 256, 3, 1>>();

}  // namespace attention::cuda::decode
