// The oracle itself, against values worked out by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/reference/reference_attention.h"
#include "tests/support/attention_problem.h"

namespace attention {
namespace {

using test::AttentionProblem;
using test::TensorRole;
using testing::DoubleNear;
using testing::Each;
using testing::ElementsAre;
using testing::NanSensitiveDoubleEq;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// One head of fp32 tensors given as flat lists.
class Problem {
 public:
  Problem(int32_t dim, std::vector<float> query, std::vector<float> key,
          std::vector<float> value)
      : query_(std::move(query)),
        key_(std::move(key)),
        value_(std::move(value)) {
    config.head_dim_qk = dim;
    config.head_dim_v = 1;
    config.query_head_count = config.kv_head_count = 1;
    sequence.query = query_.data();
    sequence.key = key_.data();
    sequence.value = value_.data();
    sequence.query_length = query_.size() / dim;
    sequence.key_length = key_.size() / dim;
    sequence.query_strides = sequence.key_strides = {dim, dim, 1};
    sequence.value_strides = {1, 1, 1};
  }

  reference::SequenceResult Compute() const {
    return reference::ComputeAttention(config, sequence, true);
  }

  HeadConfig config;
  Sequence sequence;

 private:
  std::vector<float> query_, key_, value_;
};

TEST(ReferenceTest, WeighsValuesBySoftmaxOfScaledProducts) {
  // Scores 0.5 * (2*1 + 0*3) = 1 and 0.5 * (2*0 + 0*5) = 0.
  Problem problem(2, {2, 0}, {1, 3, 0, 5}, {10, 20});
  problem.sequence.scale = 0.5;
  const double e = std::exp(1.0);
  const auto result = problem.Compute();
  EXPECT_THAT(result.weights, ElementsAre(DoubleNear(e / (e + 1), 1e-15),
                                          DoubleNear(1 / (e + 1), 1e-15)));
  EXPECT_NEAR(result.output[0], (10 * e + 20) / (e + 1), 1e-13);
  EXPECT_NEAR(result.log_sum_exp[0], std::log(e + 1), 1e-15);
}

TEST(ReferenceTest, EqualScoresAverageTheVisibleValues) {
  Problem problem(1, {0, 0, 0}, {1, 2, 3}, {3, 6, 12});
  EXPECT_THAT(problem.Compute().output, Each(DoubleNear(7, 1e-14)));
  problem.config.mask = MaskKind::kCausalTopLeft;
  EXPECT_THAT(problem.Compute().output,
              ElementsAre(DoubleNear(3, 1e-14), DoubleNear(4.5, 1e-14),
                          DoubleNear(7, 1e-14)));
}

TEST(ReferenceTest, CausalAlignmentsDifferWhenLengthsDo) {
  Problem problem(1, {0}, {0, 0, 0}, {1, 2, 6});
  problem.config.mask = MaskKind::kCausalTopLeft;
  EXPECT_THAT(problem.Compute().output, ElementsAre(1.0));
  problem.config.mask = MaskKind::kCausalBottomRight;
  EXPECT_THAT(problem.Compute().output, ElementsAre(DoubleNear(3, 1e-14)));
}

TEST(ReferenceTest, WindowsAreMeasuredFromTheDiagonal) {
  Problem problem(1, {0, 0}, {0, 0, 0, 0}, {1, 2, 4, 8});
  problem.sequence.window_left = 1;
  problem.sequence.window_right = 0;
  // Diagonals j = 2 and j = 3: keys {1, 2} and {2, 3}.
  EXPECT_THAT(problem.Compute().output, ElementsAre(3.0, 6.0));
}

TEST(ReferenceTest, RowsWithoutVisibleKeysGiveZeroAndMinusInfinity) {
  Problem problem(1, {1, 1, 1}, {1}, {5});
  problem.config.mask = MaskKind::kCausalBottomRight;
  const auto result = problem.Compute();
  EXPECT_THAT(result.output, ElementsAre(0.0, 0.0, 5.0));
  EXPECT_THAT(result.log_sum_exp, ElementsAre(-kInfinity, -kInfinity, 1.0));
  EXPECT_THAT(result.weights, ElementsAre(0.0, 0.0, 1.0));
}

TEST(ReferenceTest, NoKeysGiveZeroAndMinusInfinity) {
  Problem problem(1, {1, 1}, {}, {});
  const auto result = problem.Compute();
  EXPECT_THAT(result.output, ElementsAre(0.0, 0.0));
  EXPECT_THAT(result.log_sum_exp, Each(-kInfinity));
}

TEST(ReferenceTest, ScoresOfMinusInfinityCountAsMasked) {
  const float minus_infinity = -std::numeric_limits<float>::infinity();
  Problem some(1, {1}, {minus_infinity, 2}, {100, 3});
  EXPECT_THAT(some.Compute().output, ElementsAre(3.0));
  EXPECT_THAT(some.Compute().log_sum_exp, ElementsAre(2.0));
  Problem all(1, {1}, {minus_infinity, minus_infinity}, {100, 3});
  EXPECT_THAT(all.Compute().output, ElementsAre(0.0));
  EXPECT_THAT(all.Compute().log_sum_exp, ElementsAre(-kInfinity));
}

TEST(ReferenceTest, NanAndInfiniteScoresMakeTheirRowNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (float bad : {nan, infinity}) {
    Problem problem(1, {1, 1}, {2, bad}, {7, 9});
    problem.config.mask = MaskKind::kCausalTopLeft;
    const auto result = problem.Compute();
    EXPECT_EQ(result.output[0], 7.0);
    EXPECT_EQ(result.log_sum_exp[0], 2.0);
    EXPECT_TRUE(std::isnan(result.output[1]));
    EXPECT_TRUE(std::isnan(result.log_sum_exp[1]));
  }
}

TEST(ReferenceTest, HugeScoresNeitherOverflowNorVanish) {
  Problem problem(1, {1e5f}, {1, 1, 0}, {2, 4, 1000});
  EXPECT_THAT(problem.Compute().output, ElementsAre(3.0));
  EXPECT_DOUBLE_EQ(problem.Compute().log_sum_exp[0], 1e5 + std::log(2.0));
  problem.sequence.scale = -1;
  EXPECT_THAT(problem.Compute().output, ElementsAre(1000.0));
}

TEST(ReferenceTest, QueryHeadsShareKeyHeadsInRuns) {
  AttentionProblem problem({.config = {.head_dim_qk = 4,
                                       .head_dim_v = 1,
                                       .query_head_count = 6,
                                       .kv_head_count = 2},
                            .sequences = {{2, 3}}});
  for (int64_t head = 0; head < 2; ++head) {
    for (int64_t j = 0; j < 3; ++j) {
      problem.Set(TensorRole::kValue, 0, j, head, 0, head == 0 ? 10 : 20);
    }
  }
  const auto result =
      reference::ComputeAttention(problem.spec().config, problem.sequence(0));
  for (int64_t row = 0; row < 2; ++row) {
    for (int64_t head = 0; head < 6; ++head) {
      EXPECT_NEAR(result.output[row * 6 + head], head < 3 ? 10 : 20, 1e-13);
    }
  }
}

TEST(ReferenceTest, OutputsLieBetweenTheVisibleValuesAndWeightsSumToOne) {
  for (test::Layout layout : test::kAllLayouts) {
    AttentionProblem problem({.config = {.head_dim_qk = 5,
                                         .head_dim_v = 3,
                                         .query_head_count = 4,
                                         .kv_head_count = 2,
                                         .mask = MaskKind::kCausalTopLeft},
                              .sequences = {{9, 9}},
                              .layout = layout});
    const auto result = reference::ComputeAttention(problem.spec().config,
                                                    problem.sequence(0), true);
    for (int64_t head = 0; head < 4; ++head) {
      for (int64_t i = 0; i < 9; ++i) {
        double sum = 0;
        for (int64_t j = 0; j < 9; ++j) {
          const double weight = result.weights[(head * 9 + i) * 9 + j];
          sum += weight;
          EXPECT_EQ(weight > 0, j <= i);
        }
        EXPECT_NEAR(sum, 1, 1e-14);
        for (int64_t d = 0; d < 3; ++d) {
          float low = INFINITY;
          float high = -INFINITY;
          for (int64_t j = 0; j <= i; ++j) {
            const float v = problem.Get(TensorRole::kValue, 0, j, head / 2, d);
            low = std::min(low, v);
            high = std::max(high, v);
          }
          const double got = result.output[(i * 4 + head) * 3 + d];
          EXPECT_GE(got, low - 1e-12);
          EXPECT_LE(got, high + 1e-12);
        }
      }
    }
  }
}

TEST(ReferenceTest, LayoutDoesNotChangeTheAnswer) {
  const HeadConfig config{.data_type = DataType::kFloat16,
                          .head_dim_qk = 6,
                          .head_dim_v = 4,
                          .query_head_count = 2,
                          .kv_head_count = 2};
  const auto compute = [&](test::Layout layout) {
    AttentionProblem problem(
        {.config = config, .sequences = {{7, 7}}, .layout = layout});
    return reference::ComputeAttention(config, problem.sequence(0)).output;
  };
  const auto want = compute(test::Layout::kTokenMajor);
  for (test::Layout layout : test::kAllLayouts) {
    if (layout == test::Layout::kExpandedHeads) continue;  // other values
    EXPECT_EQ(compute(layout), want) << static_cast<int>(layout);
  }
}

}  // namespace
}  // namespace attention
