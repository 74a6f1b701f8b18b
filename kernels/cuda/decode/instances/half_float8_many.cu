#include "kernels/cuda/decode/tensor_core.cuh"

namespace attention::cuda::decode {

const AttendKernel kHalfFloat8Many64 = DescribeTensor<
    AttendTile<__half, true, true, 64, 4, 3>>();
const AttendKernel kHalfFloat8Many128 = DescribeTensor<
    AttendTile<__half, true, true, 128, 3, 2>>();
const AttendKernel kHalfFloat8Many256 = DescribeTensor<
    AttendTile<__half, true, true, 256, 3, 1>>();

}  // namespace attention::cuda::decode
