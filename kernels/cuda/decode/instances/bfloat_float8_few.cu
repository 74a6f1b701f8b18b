#include "kernels/cuda/decode/tensor_core.cuh"

namespace attention::cuda::decode {

const AttendKernel kBFloatFloat8Few64 = DescribeTensor<
    AttendTile<__nv_bfloat16, true, false, 64, 4, 4>>();
const AttendKernel kBFloatFloat8Few128 = DescribeTensor<
    AttendTile<__nv_bfloat16, true, false, 128, 3, 3>>();
const AttendKernel kBFloatFloat8Few256 = DescribeTensor<
    AttendTile<__nv_bfloat16, true, false, 256, 3, 1>>();

}  // namespace attention::cuda::decode
