#include "client/cpp/float8.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/float_convert.h"

namespace attention {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// What the elements stand for.
std::vector<float> Values(const Float8Tensor& tensor,
                          const std::vector<int>& head_of) {
  std::vector<float> values;
  for (size_t i = 0; i < tensor.elements.size(); ++i) {
    values.push_back(Float8E4M3ToFloat(tensor.elements[i]) *
                     tensor.scales[head_of[i]]);
  }
  return values;
}

TEST(Float8Test, ScalesEachHeadByItsLargest) {
  // Two tokens, three heads, two dimensions.
  const std::vector<float> values = {448,  -1,    0, 0, 1, -2,
                                     -224, 0.25f, 0, 0, 7, 0.5f};
  const Float8Tensor by_token =
      QuantizeFloat8(values, {1, 2, 3, 2}, Layout::kBshd);
  EXPECT_THAT(by_token.scales, ElementsAre(1, 1, 1 / 64.0f));
  EXPECT_EQ(Values(by_token, {0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2}), values);
  EXPECT_EQ(QuantizeFloat8(values, {2, 3, 2}, Layout::kThd).scales,
            by_token.scales);
  // The same memory as one sequence of two heads with three tokens.
  const Float8Tensor by_head =
      QuantizeFloat8(values, {1, 2, 3, 2}, Layout::kBhsd);
  EXPECT_THAT(by_head.scales, ElementsAre(1, 0.5f));
}

TEST(Float8Test, RoundsToNearest) {
  std::vector<float> values;
  for (int i = 1; i <= 1000; ++i) {
    values.push_back(std::sin(static_cast<float>(i)) * 100);
  }
  const Float8Tensor tensor = QuantizeFloat8(values, {1000, 1, 1}, Layout::kThd);
  const std::vector<float> rounded = Values(tensor, std::vector<int>(1000));
  for (size_t i = 0; i < values.size(); ++i) {
    // Half of the distance between neighbours: 2^-4 of the value, or that of
    // subnormals.
    const float allowed =
        std::max(std::abs(values[i]) * 0x1p-4f, tensor.scales[0] * 0x1p-10f);
    EXPECT_NEAR(rounded[i], values[i], allowed * 1.0001f);
  }
}

TEST(Float8Test, KeepsWhatIsNotFinite) {
  const Float8Tensor tensor =
      QuantizeFloat8({NAN, kInfinity, -kInfinity, 2}, {2, 2, 1}, Layout::kThd);
  // Head 0 has NaN and an infinity, head 1 an infinity and 2.
  EXPECT_THAT(tensor.scales, ElementsAre(1, 2.0f / 448));
  EXPECT_TRUE(std::isnan(Float8E4M3ToFloat(tensor.elements[0])));
  EXPECT_EQ(Float8E4M3ToFloat(tensor.elements[1]), 448);
  EXPECT_EQ(Float8E4M3ToFloat(tensor.elements[2]), -448);
}

TEST(Float8Test, ScalesAreNormalNumbers) {
  const Float8Tensor tensor = QuantizeFloat8(
      {0, -0.0f, 1e-45f, std::numeric_limits<float>::max()}, {1, 4, 1},
      Layout::kThd);
  for (const float scale : tensor.scales) EXPECT_TRUE(std::isnormal(scale));
  EXPECT_EQ(tensor.scales[0], 1);
  EXPECT_EQ(tensor.elements[3], 0x7e);
}

TEST(Float8Test, TakesEmptyTensors) {
  const Float8Tensor tensor = QuantizeFloat8({}, {0, 8, 64}, Layout::kThd);
  EXPECT_THAT(tensor.elements, IsEmpty());
  EXPECT_THAT(tensor.scales, IsEmpty());
}

}  // namespace
}  // namespace attention
