#include "kernels/cuda/decode/tensor_core.cuh"

namespace attention::cuda::decode {

const AttendKernel kBFloatFew64 = DescribeTensor<
    AttendTile<__nv_bfloat16, false, false, 64, 3, 4>>();
const AttendKernel kBFloatFew128 = DescribeTensor<
    AttendTile<__nv_bfloat16, false, false, 128, 2, 3>>();
const AttendKernel kBFloatFew256 = DescribeTensor<
    AttendTile<__nv_bfloat16, false, false, 256, 2, 1>>();

}  // namespace attention::cuda::decode
