#include "kernels/cuda/decode/tensor_core.cuh"

namespace attention::cuda::decode {

const AttendKernel kBFloatMany64 = DescribeTensor<
    AttendTile<__nv_bfloat16, false, true, 64, 3, 3>>();
const AttendKernel kBFloatMany128 = DescribeTensor<
    AttendTile<__nv_bfloat16, false, true, 128, 2, 2>>();
const AttendKernel kBFloatMany256 = DescribeTensor<
    AttendTile<__nv_bfloat16, false, true, 256, 2, 1>>();

}  // namespace attention::cuda::decode
