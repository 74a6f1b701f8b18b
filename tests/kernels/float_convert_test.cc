#include "kernels/float_convert.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace attention {
namespace {

struct Format {
  const char* name;
  DataType type;
  int exponent_bits;
  int mantissa_bits;
  float (*to_float)(uint16_t);
  uint16_t (*from_float)(float);
};

class FloatConvertTest : public testing::TestWithParam<Format> {
 protected:
  // The value of a bit pattern by the definition of IEEE 754.
  double Decode(uint16_t bits) const {
    const Format& f = GetParam();
    const int exponent_max = (1 << f.exponent_bits) - 1;
    const int bias = exponent_max / 2;
    const int exponent = (bits >> f.mantissa_bits) & exponent_max;
    const int mantissa = bits & ((1 << f.mantissa_bits) - 1);
    const double sign = bits & 0x8000 ? -1.0 : 1.0;
    if (exponent == exponent_max) {
      return mantissa != 0 ? std::nan("")
                           : sign * std::numeric_limits<double>::infinity();
    }
    const double significand =
        exponent == 0 ? mantissa : mantissa + (1 << f.mantissa_bits);
    return sign * std::ldexp(significand,
                             std::max(exponent, 1) - bias - f.mantissa_bits);
  }
};

TEST_P(FloatConvertTest, EveryPatternHasItsValue) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const double want = Decode(static_cast<uint16_t>(bits));
    const float got = GetParam().to_float(static_cast<uint16_t>(bits));
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(got)) << bits;
    } else {
      ASSERT_EQ(got, want) << bits;
      ASSERT_EQ(std::signbit(got), std::signbit(want)) << bits;
    }
  }
}

TEST_P(FloatConvertTest, EveryPatternRoundTrips) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto pattern = static_cast<uint16_t>(bits);
    const uint16_t back = GetParam().from_float(GetParam().to_float(pattern));
    if (std::isnan(Decode(pattern))) {
      ASSERT_TRUE(std::isnan(Decode(back))) << bits;
    } else {
      ASSERT_EQ(back, pattern);
    }
  }
}

TEST_P(FloatConvertTest, RoundsToNearestEven) {
  const Format& f = GetParam();
  const uint16_t infinity = ((1 << f.exponent_bits) - 1) << f.mantissa_bits;
  for (uint16_t low = 0; low < infinity; ++low) {
    const uint16_t high = low + 1;
    // The step from the largest finite number to infinity is as large as the
    // one before it.
    const double below = Decode(low);
    const double above =
        high == infinity ? below + (below - Decode(low - 1)) : Decode(high);
    const auto middle = static_cast<float>((below + above) / 2);
    ASSERT_EQ(middle, (below + above) / 2) << "not exact in fp32";
    const uint16_t even = low % 2 == 0 ? low : high;
    ASSERT_EQ(f.from_float(middle), even) << low;
    ASSERT_EQ(f.from_float(std::nextafter(middle, 0.0f)), low);
    ASSERT_EQ(f.from_float(std::nextafter(middle, INFINITY)), high);
    ASSERT_EQ(f.from_float(-middle), even | 0x8000);
  }
}

TEST_P(FloatConvertTest, NanWithAnyPayloadStaysNan) {
  for (uint32_t payload : {0x1u, 0x1fffu, 0xffffu, 0x400000u, 0x7fffffu}) {
    for (uint32_t sign : {0u, 0x80000000u}) {
      const auto nan = std::bit_cast<float>(sign | 0x7f800000u | payload);
      EXPECT_TRUE(std::isnan(Decode(GetParam().from_float(nan)))) << payload;
    }
  }
}

TEST_P(FloatConvertTest, BuffersAreIndexedByElement) {
  std::vector<uint16_t> buffer(4, 0);
  StoreFromFloat(GetParam().type, buffer.data(), 1, -1.5f);
  EXPECT_EQ(buffer[0], 0);
  EXPECT_EQ(Decode(buffer[1]), -1.5);
  EXPECT_EQ(buffer[2], 0);
  EXPECT_EQ(LoadAsFloat(GetParam().type, buffer.data(), 1), -1.5f);
}

INSTANTIATE_TEST_SUITE_P(Formats, FloatConvertTest,
                         testing::Values(Format{"Half", DataType::kFloat16, 5,
                                                10, HalfToFloat, FloatToHalf},
                                         Format{"BFloat16", DataType::kBFloat16,
                                                8, 7, BFloat16ToFloat,
                                                FloatToBFloat16}),
                         [](const auto& info) { return info.param.name; });

TEST(FloatConvertFp32Test, PassesThroughUnchanged) {
  float buffer[2] = {0, 0};
  StoreFromFloat(DataType::kFloat32, buffer, 1, 0x1.fffffep-126f);
  EXPECT_EQ(buffer[0], 0);
  EXPECT_EQ(LoadAsFloat(DataType::kFloat32, buffer, 1), 0x1.fffffep-126f);
}

// The value of an fp8 pattern that is not NaN, by definition.
double DecodeFloat8(int bits) {
  const int exponent = (bits >> 3) & 0xf;
  const int significand = (bits & 7) + (exponent == 0 ? 0 : 8);
  return (bits & 0x80 ? -1.0 : 1.0) *
         std::ldexp(significand, std::max(exponent, 1) - 7 - 3);
}

TEST(Float8E4M3Test, EveryPatternHasItsValueAndRoundTrips) {
  for (int bits = 0; bits < 256; ++bits) {
    const auto pattern = static_cast<uint8_t>(bits);
    const float value = Float8E4M3ToFloat(pattern);
    EXPECT_EQ(FloatToFloat8E4M3(value), pattern);
    if ((bits & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value)) << bits;
    } else {
      EXPECT_EQ(value, DecodeFloat8(bits)) << bits;
      EXPECT_EQ(std::signbit(value), bits >= 128) << bits;
    }
  }
}

TEST(Float8E4M3Test, ElementsOfBuffersAreBytes) {
  uint8_t buffer[3] = {0x11, 0x22, 0x33};
  StoreFromFloat(DataType::kFloat8E4M3, buffer, 1, -2.5f);
  EXPECT_EQ(buffer[0], 0x11);
  EXPECT_EQ(buffer[1], 0xc2);
  EXPECT_EQ(buffer[2], 0x33);
  EXPECT_EQ(LoadAsFloat(DataType::kFloat8E4M3, buffer, 1), -2.5f);
}

TEST(Float8E4M3Test, RoundsToNearestEven) {
  for (int bits = 0; bits < 0x7e; ++bits) {
    const double low = DecodeFloat8(bits);
    const double high = DecodeFloat8(bits + 1);
    const auto middle = static_cast<float>((low + high) / 2);  // exact
    const int even = bits % 2 == 0 ? bits : bits + 1;
    for (int sign : {0, 0x80}) {
      const float factor = sign == 0 ? 1.0f : -1.0f;
      EXPECT_EQ(FloatToFloat8E4M3(factor * middle), sign | even) << bits;
      EXPECT_EQ(FloatToFloat8E4M3(factor * std::nextafter(middle, 0.0f)),
                sign | bits);
      EXPECT_EQ(FloatToFloat8E4M3(factor * std::nextafter(middle, 500.0f)),
                sign | (bits + 1));
    }
  }
}

TEST(Float8E4M3Test, Saturates) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (float value : {448.0f, 449.0f, 464.0f, 480.0f, 1e30f, infinity}) {
    EXPECT_EQ(FloatToFloat8E4M3(value), 0x7e) << value;
    EXPECT_EQ(FloatToFloat8E4M3(-value), 0xfe) << value;
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(FloatToFloat8E4M3(nan) & 0x7f, 0x7f);
  EXPECT_EQ(FloatToFloat8E4M3(-nan) & 0x7f, 0x7f);
}

}  // namespace
}  // namespace attention
