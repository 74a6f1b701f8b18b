#include "kernels/cuda/decode/streamed.cuh"

namespace attention::cuda::decode {

const AttendKernel kBFloatMany64Streamed =
    DescribeStreamed<AttendTile<__nv_bfloat16, false, true, 64, 8, 1>>();
const AttendKernel kBFloatMany128Streamed =
    DescribeStreamed<AttendTile<__nv_bfloat16, false, true, 128, 5, 1>>();
const AttendKernel kBFloatMany256Streamed =
    DescribeStreamed<AttendTile<__nv_bfloat16, false, true, 256, 2, 1>>();

}  // namespace attention::cuda::decode
