#include "kernels/cuda/decode/streamed.cuh"

namespace attention::cuda::decode {

const AttendKernel kHalfFloat8Many64Streamed =
    DescribeStreamed<AttendTile<__half, true, true, 64, 8, 1>>();
const AttendKernel kHalfFloat8Many128Streamed =
    DescribeStreamed<AttendTile<__half, true, true, 128, 8, 1>>();
const AttendKernel kHalfFloat8Many256Streamed =
    DescribeStreamed<AttendTile<__half, true, true, 256, 4, 1>>();

}  // namespace attention::cuda::decode
