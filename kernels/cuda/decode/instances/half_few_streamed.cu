#include "kernels/cuda/decode/streamed.cuh"

namespace attention::cuda::decode {

const AttendKernel kHalfFew64Streamed =
    DescribeStreamed<AttendTile<__half, false, false, 64, 4, 2>>();
const AttendKernel kHalfFew128Streamed =
    DescribeStreamed<AttendTile<__half, false, false, 128, 2, 2>>();
const AttendKernel kHalfFew256Streamed =
    DescribeStreamed<AttendTile<__half, false, false, 256, 2, 1>>();

}  // namespace attention::cuda::decode
