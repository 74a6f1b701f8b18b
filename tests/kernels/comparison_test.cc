// The comparison of kernels with the reference accepts what fp32 arithmetic can
// give, in the least favourable order, and nothing much coarser.
#include "tests/support/comparison.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/support/attention_problem.h"
#include "tests/support/kernel_backend.h"

namespace attention::test {
namespace {

// To `bits` significant ones, ties away from zero as cvt.rna does.
float RoundTo(int bits, float value) {
  const int dropped = 24 - bits;
  const auto word = std::bit_cast<uint32_t>(value);
  if (dropped == 0) return value;
  return std::bit_cast<float>((word + (1u << (dropped - 1))) >> dropped
                                                                    << dropped);
}

// Attention of one token-major sequence in fp32, one term after the other, of
// operands with that many significant bits.
void ComputePlainly(const HeadConfig& c, const Sequence& s, int bits) {
  const auto* query = static_cast<const float*>(s.query);
  const auto* key = static_cast<const float*>(s.key);
  const auto* value = static_cast<const float*>(s.value);
  auto* output = static_cast<float*>(s.output);
  auto* all_weights = static_cast<float*>(s.weights);
  const int64_t group = c.query_head_count / c.kv_head_count;
  for (int64_t i = 0; i < s.query_length; ++i) {
    for (int64_t h = 0; h < c.query_head_count; ++h) {
      float* weights = all_weights + (h * s.query_length + i) * s.key_length;
      float max = -INFINITY;
      for (int64_t j = 0; j < s.key_length; ++j) {
        const float* q = query + i * s.query_strides.token + h * c.head_dim_qk;
        const float* k =
            key + j * s.key_strides.token + h / group * c.head_dim_qk;
        float dot = 0;
        for (int64_t d = 0; d < c.head_dim_qk; ++d) {
          dot += RoundTo(bits, q[d]) * RoundTo(bits, k[d]);
        }
        weights[j] = static_cast<float>(s.scale) * dot;
        max = std::max(max, weights[j]);
      }
      float sum = 0;
      for (int64_t j = 0; j < s.key_length; ++j) {
        sum += weights[j] = std::exp(weights[j] - max);
      }
      s.log_sum_exp[i * s.log_sum_exp_token_stride +
                    h * s.log_sum_exp_head_stride] = max + std::log(sum);
      float* row = output + i * s.output_strides.token + h * c.head_dim_v;
      std::fill_n(row, c.head_dim_v, 0.0f);
      for (int64_t j = 0; j < s.key_length; ++j) {
        weights[j] /= sum;
        for (int64_t d = 0; d < c.head_dim_v; ++d) {
          row[d] +=
              weights[j] *
              value[j * s.value_strides.token + h / group * c.head_dim_v + d];
        }
      }
    }
  }
}

struct Shape {
  int32_t head_dim;
  int32_t heads;
  int64_t query_length, key_length;
  double scale;
};

class ComparisonTest : public testing::TestWithParam<Shape> {
 protected:
  testing::AssertionResult ComparePlain(Precision precision, int bits,
                                        uint64_t seed) {
    const Shape& shape = GetParam();
    AttentionProblem problem(
        {.config = {.head_dim_qk = shape.head_dim,
                    .head_dim_v = 3,
                    .query_head_count = shape.heads,
                    .kv_head_count = 1,
                    .precision = precision,
                    .algorithm = Algorithm::kThreeStep},
         .sequences = {{shape.query_length, shape.key_length, shape.scale}},
         .weights = true,
         .seed = seed});
    ComputePlainly(problem.spec().config, problem.sequence(0), bits);
    return MatchesReference(problem);
  }
};

constexpr int kFloatBits = 24;
constexpr int kTf32Bits = 11;

TEST_P(ComparisonTest, AcceptsPlainArithmetic) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    const uint64_t seed = RunSeed() + repeat;
    EXPECT_TRUE(ComparePlain(Precision::kIeee, kFloatBits, seed));
    EXPECT_TRUE(ComparePlain(Precision::kTf32, kTf32Bits, seed));
  }
}

TEST_P(ComparisonTest, RefusesCoarserOperands) {
  EXPECT_FALSE(ComparePlain(Precision::kIeee, kTf32Bits, RunSeed()));
  EXPECT_FALSE(ComparePlain(Precision::kIeee, kFloatBits - 8, RunSeed()));
  EXPECT_FALSE(ComparePlain(Precision::kTf32, kTf32Bits - 3, RunSeed()));
}

INSTANTIATE_TEST_SUITE_P(Shapes, ComparisonTest,
                         testing::Values(Shape{4, 20000, 2, 3, 0.5},
                                         Shape{224, 7, 90, 80, -0.378},
                                         Shape{64, 4, 60, 150, 0.125},
                                         Shape{256, 2, 40, 60, 1.0},
                                         Shape{1, 50, 50, 50, 1.5}));

}  // namespace
}  // namespace attention::test
