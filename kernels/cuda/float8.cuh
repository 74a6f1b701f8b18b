// e4m3 elements: 4 bits of exponent, 3 of mantissa, no infinity, NaN is all
// ones (Micikevicius et al. 2022, "FP8 Formats for Deep Learning").
#ifndef ATTENTION_KERNELS_CUDA_FLOAT8_CUH_
#define ATTENTION_KERNELS_CUDA_FLOAT8_CUH_

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace attention::cuda {

// The two elements in the low 16 bits of `pair` as fp16, which holds all
// exactly.
inline __device__ uint32_t Float8PairToHalf(uint32_t pair) {
#if __CUDA_ARCH__ >= 890
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;"
      : "=r"(halves)
      : "h"(static_cast<uint16_t>(pair)));
  return halves;
#else
  // With the exponent where fp16 has it, the number is off by 2^8, also where
  // it is subnormal.
  const uint32_t spread =
      __byte_perm(pair, 0, 0x1404);  // b1 0 b0 0, high first
  const uint32_t bits = (spread & 0x80008000u) | (spread >> 1 & 0x3f803f80u);
  const __half2 scaled = __hmul2(*reinterpret_cast<const __half2*>(&bits),
                                 __float2half2_rn(256.0f));
  uint32_t halves = *reinterpret_cast<const uint32_t*>(&scaled);
  if ((pair & 0x7f) == 0x7f) halves |= 0x00007fffu;
  if ((pair & 0x7f00) == 0x7f00) halves |= 0x7fff0000u;
  return halves;
#endif
}

inline __device__ float Float8ToFloat(uint8_t bits) {
  const uint32_t halves = Float8PairToHalf(bits);
  return __half2float(__ushort_as_half(static_cast<uint16_t>(halves)));
}

// Rounds to nearest even; beyond the largest number, 448, to that; NaN stays.
inline __device__ uint8_t FloatToFloat8(float value) {
  return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
}

// Marks the bytes of a word that are NaN with all ones.
inline __device__ uint32_t Float8NanBytes(uint32_t word) {
  return __vcmpeq4(word & 0x7f7f7f7fu, 0x7f7f7f7fu);
}

}  // namespace attention::cuda

#endif  // ATTENTION_KERNELS_CUDA_FLOAT8_CUH_
