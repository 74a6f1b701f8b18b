#include "kernels/cuda/decode/tensor_core.cuh"

namespace attention::cuda::decode {

const AttendKernel kHalfMany64 = DescribeTensor<
    AttendTile<__half, false, true, 64, 3, 3>>();
const AttendKernel kHalfMany128 = DescribeTensor<
    AttendTile<__half, false, true, 128, 2, 2>>();
const AttendKernel kHalfMany256 = DescribeTensor<
    AttendTile<__half, false, true, 256, 2, 1>>();

}  // namespace attention::cuda::decode
