// fp32 numbers as sums of bf16 numbers, which tensor cores multiply at twice
// rate of TF32, from rows in their natural order, and without loss of range.
//
//   x = x0 + x1 + x2,  x0 = x truncated, the others rounded to nearest
//
// Of the products of parts a and b of two numbers, those with a + b < 3 are
// computed; what is left out is below 2^-21 of the product, and of both signs.
#ifndef ATTENTION_KERNELS_CUDA_SM90_FLOAT_SPLIT_CUH_
#define ATTENTION_KERNELS_CUDA_SM90_FLOAT_SPLIT_CUH_

#include <cstdint>

#include "kernels/cuda/portable/element.cuh"

namespace attention::cuda::sm90 {

inline constexpr int kSplitParts = 3;

// Splits two finite numbers: word[i] has their parts i. Returns the sum of what
// the first parts leave, which is NaN if one of the numbers is not finite.
inline __device__ float SplitPair(float low, float high,
                                  uint32_t (&word)[kSplitParts]) {
  constexpr uint32_t kUpper = 0xffff0000u;
  const uint32_t low_bits = __float_as_uint(low);
  const uint32_t high_bits = __float_as_uint(high);
  word[0] = __byte_perm(low_bits, high_bits, 0x7632);
  low -= __uint_as_float(low_bits & kUpper);
  high -= __uint_as_float(high_bits & kUpper);
  const float rest = low + high;
#pragma unroll
  for (int i = 1; i < kSplitParts; ++i) {
    word[i] = portable::Element<__nv_bfloat16>::Pack(low, high);
    low -= __uint_as_float(word[i] << 16);
    high -= __uint_as_float(word[i] & kUpper);
  }
  return rest;
}

// The parts of a number that is not finite. It stands in the last part, which
// is multiplied with first parts only: others may be 0. A first part of its
// sign serves the product of two such numbers.
inline __device__ void SplitNonFinite(uint32_t bits, int half,
                                      uint32_t (&word)[kSplitParts]) {
  const uint32_t quiet = (bits & 0x007fffffu) != 0 ? 0x40u : 0u;
  const uint32_t sign = bits >> 16 & 0x8000u;
#pragma unroll
  for (int i = 0; i < kSplitParts; ++i) {
    const uint32_t part = i == 0                 ? sign | 0x3f80u
                          : i == kSplitParts - 1 ? bits >> 16 | quiet
                                                 : 0u;
    word[i] = half == 0 ? (word[i] & 0xffff0000u) | part
                        : (word[i] & 0x0000ffffu) | part << 16;
  }
}

}  // namespace attention::cuda::sm90

#endif  // ATTENTION_KERNELS_CUDA_SM90_FLOAT_SPLIT_CUH_
