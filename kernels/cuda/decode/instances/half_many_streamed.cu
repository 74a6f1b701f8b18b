#include "kernels/cuda/decode/streamed.cuh"

namespace attention::cuda::decode {

const AttendKernel kHalfMany64Streamed =
    DescribeStreamed<AttendTile<__half, false, true, 64, 8, 1>>();
const AttendKernel kHalfMany128Streamed =
    DescribeStreamed<AttendTile<__half, false, true, 128, 5, 1>>();
const AttendKernel kHalfMany256Streamed =
    DescribeStreamed<AttendTile<__half, false, true, 256, 2, 1>>();

}  // namespace attention::cuda::decode
