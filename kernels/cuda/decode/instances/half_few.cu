#include "kernels/cuda/decode/tensor_core.cuh"

namespace attention::cuda::decode {

const AttendKernel kHalfFew64 = DescribeTensor<
    AttendTile<__half, false, false, 64, 3, 4>>();
const AttendKernel kHalfFew128 = DescribeTensor<
    AttendTile<__half, false, false, 128, 2, 3>>();
const AttendKernel kHalfFew256 = DescribeTensor<
    AttendTile<__half, false, false, 256, 2, 1>>();

}  // namespace attention::cuda::decode
