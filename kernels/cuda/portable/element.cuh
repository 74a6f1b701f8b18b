// Element types as device code sees them: conversions and bit tricks.
#ifndef ATTENTION_KERNELS_CUDA_PORTABLE_ELEMENT_CUH_
#define ATTENTION_KERNELS_CUDA_PORTABLE_ELEMENT_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace attention::cuda::portable {

// Element<T>::Bits         storage of one element
// Element<T>::NonFinite    all ones in every element of a 32-bit word that is
//                          NaN or infinite, zeros elsewhere
// Element<T>::Pack         the 32-bit word of one or two elements
template <typename T>
struct Element;

template <>
struct Element<float> {
  using Bits = uint32_t;
  static constexpr uint32_t kSignBits = 0x80000000u;

  static __device__ uint32_t NonFinite(uint32_t word) {
    return (word & 0x7f800000u) == 0x7f800000u ? 0xffffffffu : 0u;
  }
  static __device__ float ToFloat(Bits bits) { return __uint_as_float(bits); }
  static __device__ Bits FromFloat(float value) {
    return __float_as_uint(value);
  }
};

// Marks, per 16-bit half, whether all `exponent` bits are set.
inline __device__ uint32_t HalvesWithAllOnes(uint32_t word, uint32_t exponent) {
  const uint32_t low = (word & exponent) == exponent ? 0x0000ffffu : 0u;
  const uint32_t high =
      (word & (exponent << 16)) == (exponent << 16) ? 0xffff0000u : 0u;
  return low | high;
}

template <>
struct Element<__half> {
  using Bits = uint16_t;
  static constexpr uint32_t kSignBits = 0x80008000u;

  static __device__ uint32_t NonFinite(uint32_t word) {
    return HalvesWithAllOnes(word, 0x7c00u);
  }
  static __device__ float ToFloat(Bits bits) {
    return __half2float(__ushort_as_half(bits));
  }
  static __device__ Bits FromFloat(float value) {
    return __half_as_ushort(__float2half_rn(value));
  }
  static __device__ uint32_t Pack(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
};

template <>
struct Element<__nv_bfloat16> {
  using Bits = uint16_t;
  static constexpr uint32_t kSignBits = 0x80008000u;

  static __device__ uint32_t NonFinite(uint32_t word) {
    return HalvesWithAllOnes(word, 0x7f80u);
  }
  static __device__ float ToFloat(Bits bits) {
    return __uint_as_float(static_cast<uint32_t>(bits) << 16);
  }
  static __device__ Bits FromFloat(float value) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
  }
  static __device__ uint32_t Pack(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
};

}  // namespace attention::cuda::portable

#endif  // ATTENTION_KERNELS_CUDA_PORTABLE_ELEMENT_CUH_
