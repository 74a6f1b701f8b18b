#include "kernels/softmax_state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace attention {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

SoftmaxState<double> Summarise(const std::vector<double>& scores) {
  SoftmaxState<double> state;
  for (double score : scores) state.m = std::max(state.m, score);
  for (double score : scores) state.l += std::exp(score - state.m);
  return state;
}

TEST(SoftmaxStateTest, StartsEmpty) {
  const SoftmaxState<float> empty;
  EXPECT_EQ(empty.m, -std::numeric_limits<float>::infinity());
  EXPECT_EQ(empty.l, 0.0f);
  EXPECT_EQ(empty.Normalizer(), 0.0f);
  EXPECT_EQ(empty.LogSumExp(), -std::numeric_limits<float>::infinity());
}

TEST(SoftmaxStateTest, MergingTwoEmptyStatesIsEmptyNotNan) {
  SoftmaxState<float> state;
  const auto rescale = state.Merge({});
  EXPECT_EQ(rescale.self, 0.0f);
  EXPECT_EQ(rescale.other, 0.0f);
  EXPECT_EQ(state.l, 0.0f);
  EXPECT_EQ(state.LogSumExp(), -std::numeric_limits<float>::infinity());
}

TEST(SoftmaxStateTest, MergingWithAnEmptyStateChangesNothing) {
  const SoftmaxState<double> full{2.5, 1.75};
  SoftmaxState<double> left = full;
  EXPECT_EQ(left.Merge({}).self, 1.0);
  EXPECT_EQ(left.m, full.m);
  EXPECT_EQ(left.l, full.l);
  SoftmaxState<double> right;
  EXPECT_EQ(right.Merge(full).other, 1.0);
  EXPECT_EQ(right.m, full.m);
  EXPECT_EQ(right.l, full.l);
}

TEST(SoftmaxStateTest, AnySplitMergesToTheWhole) {
  std::mt19937 random(1);
  std::normal_distribution<double> normal(0, 30);
  std::vector<double> scores(40);
  for (double& score : scores) score = normal(random);
  const SoftmaxState<double> whole = Summarise(scores);
  for (size_t split = 0; split <= scores.size(); ++split) {
    auto state = Summarise({scores.begin(), scores.begin() + split});
    const auto rest = Summarise({scores.begin() + split, scores.end()});
    const double left_l = state.l;
    const auto rescale = state.Merge(rest);
    EXPECT_EQ(state.m, whole.m);
    EXPECT_NEAR(state.l, whole.l, 1e-14 * whole.l);
    EXPECT_NEAR(left_l * rescale.self + rest.l * rescale.other, whole.l,
                1e-14 * whole.l);
    EXPECT_NEAR(state.LogSumExp(), whole.LogSumExp(), 1e-12);
  }
}

TEST(SoftmaxStateTest, ScoresFarApartDoNotOverflow) {
  SoftmaxState<float> state{-1e5f, 1.0f};
  state.Merge({1e5f, 2.0f});
  EXPECT_EQ(state.m, 1e5f);
  EXPECT_EQ(state.l, 2.0f);
  EXPECT_FLOAT_EQ(state.LogSumExp(), 1e5f + std::log(2.0f));
}

TEST(SoftmaxStateTest, NanOnEitherSideStays) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const SoftmaxState<double> bad{nan, nan};
  const SoftmaxState<double> good{1.0, 2.0};
  SoftmaxState<double> state = bad;
  state.Merge(good);
  EXPECT_TRUE(std::isnan(state.LogSumExp()));
  EXPECT_TRUE(std::isnan(state.Normalizer()));
  state = good;
  state.Merge(bad);
  EXPECT_TRUE(std::isnan(state.LogSumExp()));
  state = {};
  state.Merge(bad);
  EXPECT_TRUE(std::isnan(state.LogSumExp()));
}

TEST(SoftmaxStateTest, AScoreOfInfinityMakesTheRowNan) {
  SoftmaxState<double> state{1.0, 2.0};
  state.Merge({kInfinity, std::exp(kInfinity - kInfinity)});
  EXPECT_TRUE(std::isnan(state.Normalizer()));
}

}  // namespace
}  // namespace attention
