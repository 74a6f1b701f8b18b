#include "kernels/cuda/decode/fma.cuh"

namespace attention::cuda::decode {

const AttendKernel kFmaFloat = DescribeFma<float, false>();
const AttendKernel kFmaFloatFloat8 = DescribeFma<float, true>();
const AttendKernel kFmaHalf = DescribeFma<__half, false>();
const AttendKernel kFmaHalfFloat8 = DescribeFma<__half, true>();
const AttendKernel kFmaBFloat = DescribeFma<__nv_bfloat16, false>();
const AttendKernel kFmaBFloatFloat8 = DescribeFma<__nv_bfloat16, true>();

}  // namespace attention::cuda::decode
