// Bit conversions between fp32 and the 16-bit and 8-bit formats, for host code.
// Rounding is to nearest even; NaN stays NaN; subnormals are kept.
#ifndef ATTENTION_KERNELS_FLOAT_CONVERT_H_
#define ATTENTION_KERNELS_FLOAT_CONVERT_H_

#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/attention_params.h"

namespace attention {

inline float BFloat16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline uint16_t FloatToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {  // NaN: keep it quiet, never infinity
    return static_cast<uint16_t>((bits >> 16) | 0x40u);
  }
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float HalfToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1fu) {
    return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  }
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

inline uint16_t FloatToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;  // NaN
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // rounds to infinity
  if (magnitude < 0x38800000u) {  // subnormal: let fp32 addition do the rounding
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(shifted) -
                                        std::bit_cast<uint32_t>(0.5f));
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  return sign | static_cast<uint16_t>((magnitude - 0x38000000u + 0xfffu + odd) >> 13);
}

// FP8 E4M3 ("E4M3FN"): no infinities; NaN is 0x7f and 0xff.
inline constexpr float kMaxFloat8E4M3 = 448.0f;

inline float Float8E4M3ToFloat(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80u) << 24;
  const uint32_t magnitude = bits & 0x7fu;
  if (magnitude == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (magnitude < 8) {  // zero or subnormal: mantissa * 2^-9
    const float value = static_cast<float>(magnitude) * 0x1p-9f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
  }
  return std::bit_cast<float>(sign | ((magnitude << 20) + (120u << 23)));
}

// Saturates: what is beyond the largest finite value, infinities too, becomes
// that value.
inline uint8_t FloatToFloat8E4M3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint8_t sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7fu;   // NaN
  if (magnitude >= 0x43e00000u) return sign | 0x7eu;  // 448
  if (magnitude < 0x3c800000u) {  // below 2^-6: let fp32 addition do the rounding
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return sign | static_cast<uint8_t>(std::bit_cast<uint32_t>(shifted) -
                                       std::bit_cast<uint32_t>(0x1p14f));
  }
  const uint32_t odd = (magnitude >> 20) & 1u;
  return sign |
         static_cast<uint8_t>((magnitude - (120u << 23) + 0x7ffffu + odd) >> 20);
}

// Element `index` of a contiguous buffer of `data_type`, as fp32 (exact).
inline float LoadAsFloat(DataType data_type, const void* data, int64_t index) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  if (data_type == DataType::kFloat8E4M3) return Float8E4M3ToFloat(bytes[index]);
  if (data_type == DataType::kFloat32) {
    float value;
    std::memcpy(&value, bytes + index * 4, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, bytes + index * 2, 2);
  return data_type == DataType::kFloat16 ? HalfToFloat(bits)
                                         : BFloat16ToFloat(bits);
}

inline void StoreFromFloat(DataType data_type, void* data, int64_t index,
                           float value) {
  auto* bytes = static_cast<unsigned char*>(data);
  if (data_type == DataType::kFloat8E4M3) {
    bytes[index] = FloatToFloat8E4M3(value);
    return;
  }
  if (data_type == DataType::kFloat32) {
    std::memcpy(bytes + index * 4, &value, 4);
    return;
  }
  const uint16_t bits = data_type == DataType::kFloat16 ? FloatToHalf(value)
                                                        : FloatToBFloat16(value);
  std::memcpy(bytes + index * 2, &bits, 2);
}

}  // namespace attention

#endif  // ATTENTION_KERNELS_FLOAT_CONVERT_H_
