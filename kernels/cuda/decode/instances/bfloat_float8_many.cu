#include "kernels/cuda/decode/tensor_core.cuh"

namespace attention::cuda::decode {

const AttendKernel kBFloatFloat8Many64 = DescribeTensor<
    AttendTile<__nv_bfloat16, true, true, 64, 4, 3>>();
const AttendKernel kBFloatFloat8Many128 = DescribeTensor<
    AttendTile<__nv_bfloat16, true, true, 128, 3, 2>>();
const AttendKernel kBFloatFloat8Many256 = DescribeTensor<
    AttendTile<__nv_bfloat16, true, true, 256, 3, 1>>();

}  // namespace attention::cuda::decode
