#include "kernels/cuda/decode/gathered.cuh"

namespace attention::cuda::decode {

const AttendKernel kBFloatFew64 =
    DescribeGathered<AttendTile<__nv_bfloat16, false, false, 64, 3, 3>>();
const AttendKernel kBFloatFew128 =
    DescribeGathered<AttendTile<__nv_bfloat16, false, false, 128, 2, 2>>();
const AttendKernel kBFloatFew256 =
    DescribeGathered<AttendTile<__nv_bfloat16, false, false, 256, 2, 1>>();

}  // namespace attention::cuda::decode
