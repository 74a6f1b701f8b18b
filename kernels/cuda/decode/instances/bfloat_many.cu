#include "kernels/cuda/decode/gathered.cuh"

namespace attention::cuda::decode {

const AttendKernel kBFloatMany64 =
    DescribeGathered<AttendTile<__nv_bfloat16, false, true, 64, 3, 2>>();
const AttendKernel kBFloatMany128 =
    DescribeGathered<AttendTile<__nv_bfloat16, false, true, 128, 2, 2>>();
const AttendKernel kBFloatMany256 =
    DescribeGathered<AttendTile<__nv_bfloat16, false, true, 256, 2, 1>>();

}  // namespace attention::cuda::decode
