#include "client/loadtest/latency_histogram.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace attention::loadtest {
namespace {

constexpr double kPercents[] = {0.1, 1, 10, 25, 50, 75, 90, 95, 99, 99.9, 100};

// Nearest rank, by sorting.
absl::Duration ExactPercentile(std::vector<absl::Duration> values,
                               double percent) {
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<size_t>(
      std::ceil(std::round(percent * 10) * values.size() / 1000.0));
  return values[std::max<size_t>(rank, 1) - 1];
}

void ExpectWithinThreeDigits(const std::vector<absl::Duration>& values,
                             const LatencyHistogram& histogram) {
  for (double percent : kPercents) {
    const absl::Duration exact = ExactPercentile(values, percent);
    const absl::Duration got = histogram.Percentile(percent);
    // Buckets are rounded up, and by less than one part in a thousand.
    EXPECT_GE(got, absl::Floor(exact, absl::Nanoseconds(1))) << percent;
    EXPECT_LE(absl::FDivDuration(got, exact), 1.001) << percent;
  }
}

std::vector<absl::Duration> LogUniform(double low_seconds, double high_seconds,
                                       int count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> exponent(std::log(low_seconds),
                                                  std::log(high_seconds));
  std::vector<absl::Duration> values;
  for (int i = 0; i < count; ++i) {
    values.push_back(absl::Seconds(std::exp(exponent(random))));
  }
  return values;
}

TEST(LatencyHistogramTest, EmptyIsAllZero) {
  const LatencyHistogram histogram;
  EXPECT_EQ(histogram.count(), 0);
  EXPECT_EQ(histogram.Percentile(99), absl::ZeroDuration());
  EXPECT_EQ(histogram.Mean(), absl::ZeroDuration());
  EXPECT_EQ(histogram.max(), absl::ZeroDuration());
}

TEST(LatencyHistogramTest, PercentilesAreWithinThreeDigitsOverTheWholeRange) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const auto values = LogUniform(1e-6, 3600, 20'011, seed);
    LatencyHistogram histogram;
    for (absl::Duration value : values) histogram.Record(value);
    ExpectWithinThreeDigits(values, histogram);
  }
}

TEST(LatencyHistogramTest, PercentilesOfAnExponentialDistribution) {
  std::mt19937_64 random(7);
  std::exponential_distribution<double> milliseconds(0.2);
  std::vector<absl::Duration> values;
  LatencyHistogram histogram;
  for (int i = 0; i < 50'000; ++i) {
    values.push_back(absl::Milliseconds(milliseconds(random)) +
                     absl::Microseconds(1));
    histogram.Record(values.back());
  }
  ExpectWithinThreeDigits(values, histogram);
}

TEST(LatencyHistogramTest, EveryBucketHoldsItsOwnValues) {
  // Each power of two of nanoseconds and its neighbours, where off-by-one
  // errors in the bucket index would show.
  for (int bit = 0; bit < 42; ++bit) {
    for (int64_t offset = -1; offset <= 1; ++offset) {
      const int64_t nanoseconds = (int64_t{1} << bit) + offset;
      if (nanoseconds > int64_t{3600} * 1'000'000'000) continue;
      LatencyHistogram histogram;
      histogram.Record(absl::Nanoseconds(nanoseconds));
      histogram.Record(absl::Hours(2));
      const int64_t got = absl::ToInt64Nanoseconds(histogram.Percentile(50));
      EXPECT_GE(got, nanoseconds);
      EXPECT_LE(got, nanoseconds + nanoseconds / 1024);
    }
  }
}

TEST(LatencyHistogramTest, RankIsNearestRank) {
  LatencyHistogram histogram;
  for (int i = 1; i <= 1000; ++i) histogram.Record(absl::Nanoseconds(i));
  EXPECT_EQ(histogram.Percentile(0), absl::Nanoseconds(1));
  EXPECT_EQ(histogram.Percentile(50), absl::Nanoseconds(500));
  EXPECT_EQ(histogram.Percentile(99.9), absl::Nanoseconds(999));
  EXPECT_EQ(histogram.Percentile(100), absl::Nanoseconds(1000));
}

TEST(LatencyHistogramTest, MergedIsAsRecordedInOne) {
  const auto values = LogUniform(1e-5, 10, 10'000, 3);
  LatencyHistogram parts[3], whole;
  for (size_t i = 0; i < values.size(); ++i) {
    parts[i % 3].Record(values[i]);
    whole.Record(values[i]);
  }
  LatencyHistogram merged;
  for (const LatencyHistogram& part : parts) merged.Merge(part);
  merged.Merge(LatencyHistogram());
  EXPECT_EQ(merged.count(), whole.count());
  EXPECT_EQ(merged.min(), whole.min());
  EXPECT_EQ(merged.max(), whole.max());
  EXPECT_NEAR(absl::FDivDuration(merged.Mean(), whole.Mean()), 1, 1e-9);
  for (double percent : kPercents) {
    EXPECT_EQ(merged.Percentile(percent), whole.Percentile(percent));
  }
}

TEST(LatencyHistogramTest, ClampsToItsRangeButKeepsTheExactMaximum) {
  LatencyHistogram histogram;
  histogram.Record(absl::Seconds(-1));
  histogram.Record(absl::Hours(30));
  EXPECT_EQ(histogram.min(), absl::ZeroDuration());
  EXPECT_EQ(histogram.Percentile(50), absl::ZeroDuration());
  EXPECT_GE(histogram.Percentile(100), absl::Hours(1));
  EXPECT_LE(histogram.Percentile(100), absl::Hours(1) * 1.001);
  EXPECT_EQ(histogram.max(), absl::Hours(30));
}

TEST(LatencyHistogramTest, MeanIsExact) {
  LatencyHistogram histogram;
  histogram.Record(absl::Milliseconds(1));
  histogram.Record(absl::Milliseconds(4));
  EXPECT_NEAR(absl::ToDoubleMilliseconds(histogram.Mean()), 2.5, 1e-9);
}

}  // namespace
}  // namespace attention::loadtest
