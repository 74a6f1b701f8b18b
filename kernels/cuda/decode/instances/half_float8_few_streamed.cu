#include "kernels/cuda/decode/streamed.cuh"

namespace attention::cuda::decode {

const AttendKernel kHalfFloat8Few64Streamed =
    DescribeStreamed<AttendTile<__half, true, false, 64, 6, 2>>();
const AttendKernel kHalfFloat8Few128Streamed =
    DescribeStreamed<AttendTile<__half, true, false, 128, 4, 2>>();
const AttendKernel kHalfFloat8Few256Streamed =
    DescribeStreamed<AttendTile<__half, true, false, 256, 4, 1>>();

}  // namespace attention::cuda::decode
