// The comparison of kernels with the reference accepts what fp32 arithmetic can
// give, in the least favourable order, and what tensor cores make of fp8, and
// nothing much coarser.
#include "tests/support/comparison.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/float_convert.h"
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

float SameWeight(float weight) { return weight; }
// Relative to the largest weight, as a tensor core takes it.
float Float8Weight(float weight) {
  return Float8E4M3ToFloat(FloatToFloat8E4M3(weight * 256)) / 256;
}
float CoarseWeight(float weight) { return RoundTo(2, weight); }
float BFloat16Weight(float weight) { return RoundTo(8, weight); }

// Attention of a sequence of fp8, with weights rounded on their way to the
// values, relative to the maximum of the keys so far.
void ComputeFloat8(const HeadConfig& c, const Sequence& s,
                   float (*round)(float)) {
  constexpr int64_t kTileKeys = 128;
  const auto dense = reference::MakeDense(c, s);
  const int64_t group = c.query_head_count / c.kv_head_count;
  std::vector<double> row(c.head_dim_v);
  std::vector<double> scores(s.key_length);
  for (int64_t i = 0; i < s.query_length; ++i) {
    for (int64_t h = 0; h < c.query_head_count; ++h) {
      const auto key = [&](int64_t j) {
        return j * c.kv_head_count + h / group;
      };
      for (int64_t j = 0; j < s.key_length; ++j) {
        scores[j] = 0;
        for (int64_t d = 0; d < c.head_dim_qk; ++d) {
          scores[j] +=
              s.scale *
              dense.query[(i * c.query_head_count + h) * c.head_dim_qk + d] *
              dense.key[key(j) * c.head_dim_qk + d];
        }
      }
      double max = -INFINITY;
      double sum = 0;
      std::fill(row.begin(), row.end(), 0.0);
      for (int64_t begin = 0; begin < s.key_length; begin += kTileKeys) {
        const int64_t end = std::min(begin + kTileKeys, s.key_length);
        const double old = max;
        for (int64_t j = begin; j < end; ++j) max = std::max(max, scores[j]);
        sum *= std::exp(old - max);
        for (double& element : row) element *= std::exp(old - max);
        for (int64_t j = begin; j < end; ++j) {
          const double weight = std::exp(scores[j] - max);
          const double rounded = round(static_cast<float>(weight));
          sum += weight;
          for (int64_t d = 0; d < c.head_dim_v; ++d) {
            row[d] += rounded * dense.value[key(j) * c.head_dim_v + d];
          }
        }
      }
      for (int64_t d = 0; d < c.head_dim_v; ++d) {
        StoreFromFloat(OutputType(c.data_type), s.output,
                       i * s.output_strides.token + h * s.output_strides.head +
                           d * s.output_strides.dim,
                       static_cast<float>(row[d] / sum));
      }
      s.log_sum_exp[i * s.log_sum_exp_token_stride +
                    h * s.log_sum_exp_head_stride] =
          static_cast<float>(max + std::log(sum));
    }
  }
}

class Float8ComparisonTest : public testing::TestWithParam<Shape> {
 protected:
  testing::AssertionResult Compare(float (*round)(float),
                                   Float8Weights promised, uint64_t seed) {
    const Shape& shape = GetParam();
    AttentionProblem problem(
        {.config = {.data_type = DataType::kFloat8E4M3,
                    .head_dim_qk = shape.head_dim,
                    .head_dim_v = 16,
                    .query_head_count = shape.heads,
                    .kv_head_count = 1},
         .sequences = {{shape.query_length, shape.key_length, shape.scale}},
         .seed = seed});
    ComputeFloat8(problem.spec().config, problem.sequence(0), round);
    return MatchesReference(problem, promised);
  }
};

TEST_P(Float8ComparisonTest, AcceptsWeightsOfThePromisedType) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    const uint64_t seed = RunSeed() + repeat;
    EXPECT_TRUE(Compare(SameWeight, Float8Weights::kBFloat16, seed));
    EXPECT_TRUE(Compare(BFloat16Weight, Float8Weights::kBFloat16, seed));
    EXPECT_TRUE(Compare(Float8Weight, Float8Weights::kFloat8, seed));
  }
}

TEST_P(Float8ComparisonTest, RefusesCoarserWeights) {
  EXPECT_FALSE(Compare(Float8Weight, Float8Weights::kBFloat16, RunSeed()));
  EXPECT_FALSE(Compare(CoarseWeight, Float8Weights::kFloat8, RunSeed()));
}

INSTANTIATE_TEST_SUITE_P(Shapes, Float8ComparisonTest,
                         testing::Values(Shape{64, 2, 60, 150, 0.125},
                                         Shape{128, 4, 100, 700, 0.0884},
                                         Shape{32, 1, 300, 40, 0.5},
                                         Shape{256, 2, 20, 3000, 0.0625}));

}  // namespace
}  // namespace attention::test
