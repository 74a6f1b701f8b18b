#include "kernels/cuda/decode/streamed.cuh"

namespace attention::cuda::decode {

const AttendKernel kBFloatFloat8Many64Streamed =
    DescribeStreamed<AttendTile<__nv_bfloat16, true, true, 64, 8, 1>>();
const AttendKernel kBFloatFloat8Many128Streamed =
    DescribeStreamed<AttendTile<__nv_bfloat16, true, true, 128, 8, 1>>();
const AttendKernel kBFloatFloat8Many256Streamed =
    DescribeStreamed<AttendTile<__nv_bfloat16, true, true, 256, 4, 1>>();

}  // namespace attention::cuda::decode
