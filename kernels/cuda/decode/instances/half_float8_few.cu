#include "kernels/cuda/decode/tensor_core.cuh"

namespace attention::cuda::decode {

const AttendKernel kHalfFloat8Few64 = DescribeTensor<
    AttendTile<__half, true, false, 64, 4, 4>>();
const AttendKernel kHalfFloat8Few128 = DescribeTensor<
    AttendTile<__half, true, false, 128, 3, 3>>();
const AttendKernel kHalfFloat8Few256 = DescribeTensor<
    AttendTile<__half, true, false, 256, 3, 1>>();

}  // namespace attention::cuda::decode
