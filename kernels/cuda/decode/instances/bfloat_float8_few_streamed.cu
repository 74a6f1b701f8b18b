#include "kernels/cuda/decode/streamed.cuh"

namespace attention::cuda::decode {

const AttendKernel kBFloatFloat8Few64Streamed =
    DescribeStreamed<AttendTile<__nv_bfloat16, true, false, 64, 6, 2>>();
const AttendKernel kBFloatFloat8Few128Streamed =
    DescribeStreamed<AttendTile<__nv_bfloat16, true, false, 128, 4, 2>>();
const AttendKernel kBFloatFloat8Few256Streamed =
    DescribeStreamed<AttendTile<__nv_bfloat16, true, false, 256, 4, 1>>();

}  // namespace attention::cuda::decode
