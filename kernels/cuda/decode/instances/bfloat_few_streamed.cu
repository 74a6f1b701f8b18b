#include "kernels/cuda/decode/streamed.cuh"

namespace attention::cuda::decode {

const AttendKernel kBFloatFew64Streamed =
    DescribeStreamed<AttendTile<__nv_bfloat16, false, false, 64, 4, 2>>();
const AttendKernel kBFloatFew128Streamed =
    DescribeStreamed<AttendTile<__nv_bfloat16, false, false, 128, 2, 2>>();
const AttendKernel kBFloatFew256Streamed =
    DescribeStreamed<AttendTile<__nv_bfloat16, false, false, 256, 2, 1>>();

}  // namespace attention::cuda::decode
