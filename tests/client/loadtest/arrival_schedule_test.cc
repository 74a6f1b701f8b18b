#include "client/loadtest/arrival_schedule.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace attention::loadtest {
namespace {

std::vector<double> Gaps(ArrivalSchedule& schedule, int count) {
  std::vector<double> gaps;
  double previous = 0;
  for (int i = 0; i < count; ++i) {
    const double moment = absl::ToDoubleSeconds(schedule.Next());
    gaps.push_back(moment - previous);
    previous = moment;
  }
  return gaps;
}

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

TEST(ArrivalScheduleTest, ConstantGapsAreEqualAndDoNotDrift) {
  ArrivalSchedule schedule(Arrival::kConstant, 300, 1);
  for (int i = 0; i < 300'000; ++i) {
    ASSERT_NEAR(absl::ToDoubleSeconds(schedule.Next()), i / 300.0, 1e-9);
  }
}

TEST(ArrivalScheduleTest, PoissonGapsHaveTheRightMeanAndVariance) {
  ArrivalSchedule schedule(Arrival::kPoisson, 250, 1);
  const std::vector<double> gaps = Gaps(schedule, 100'000);
  const double mean = Mean(gaps);
  // Four standard errors: 1 / sqrt(n) of the mean.
  EXPECT_NEAR(mean * 250, 1, 4 / std::sqrt(1e5));
  double square = 0;
  for (double gap : gaps) square += (gap - mean) * (gap - mean);
  const double deviation = std::sqrt(square / static_cast<double>(gaps.size()));
  EXPECT_NEAR(deviation * 250, 1, 0.02);
}

TEST(ArrivalScheduleTest, PoissonGapsAreExponentiallyDistributed) {
  ArrivalSchedule schedule(Arrival::kPoisson, 1000, 5);
  std::vector<double> gaps = Gaps(schedule, 20'000);
  std::sort(gaps.begin(), gaps.end());
  // Kolmogorov-Smirnov: 1.95 / sqrt(n) is the critical value at 0.1 %.
  double distance = 0;
  for (size_t i = 0; i < gaps.size(); ++i) {
    const double expected = 1 - std::exp(-1000 * gaps[i]);
    const double n = static_cast<double>(gaps.size());
    distance = std::max({distance, std::abs(expected - i / n),
                         std::abs(expected - (i + 1) / n)});
  }
  EXPECT_LT(distance, 1.95 / std::sqrt(20'000.0));
}

TEST(ArrivalScheduleTest, SeedDecidesTheSequence) {
  ArrivalSchedule first(Arrival::kPoisson, 10, 1);
  ArrivalSchedule same(Arrival::kPoisson, 10, 1);
  ArrivalSchedule other(Arrival::kPoisson, 10, 2);
  const std::vector<double> gaps = Gaps(first, 100);
  EXPECT_EQ(gaps, Gaps(same, 100));
  EXPECT_NE(gaps, Gaps(other, 100));
}

}  // namespace
}  // namespace attention::loadtest
