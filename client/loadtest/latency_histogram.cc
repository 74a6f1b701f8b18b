#include "client/loadtest/latency_histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

namespace attention::loadtest {
namespace {

constexpr int64_t kHighestNanoseconds = int64_t{3600} * 1'000'000'000;
// Values below 2 * kSubBuckets have a bucket each.
constexpr int64_t kSubBucketBits = 10;
constexpr int64_t kSubBuckets = int64_t{1} << kSubBucketBits;

// Bits that do not fit into the sub-bucket index.
constexpr int64_t Shift(uint64_t nanoseconds) {
  return std::max<int64_t>(std::bit_width(nanoseconds) - (kSubBucketBits + 1),
                           0);
}

constexpr int64_t BucketIndex(int64_t nanoseconds) {
  const int64_t shift = Shift(nanoseconds);
  return shift * kSubBuckets + (nanoseconds >> shift);
}

constexpr int64_t BucketEnd(int64_t index) {
  if (index < 2 * kSubBuckets) return index;
  const int64_t shift = index / kSubBuckets - 1;
  const int64_t leading = index - shift * kSubBuckets;
  return ((leading + 1) << shift) - 1;
}

constexpr int64_t kBucketCount = BucketIndex(kHighestNanoseconds) + 1;
static_assert(BucketIndex(2047) == 2047 && BucketIndex(2048) == 2048);
static_assert(BucketEnd(BucketIndex(kHighestNanoseconds)) >=
              kHighestNanoseconds);

}  // namespace

LatencyHistogram::LatencyHistogram() : counts_(kBucketCount) {}

void LatencyHistogram::Record(absl::Duration latency) {
  latency = std::max(latency, absl::ZeroDuration());
  const int64_t nanoseconds =
      std::min(absl::ToInt64Nanoseconds(latency), kHighestNanoseconds);
  ++counts_[BucketIndex(nanoseconds)];
  min_ = count_ == 0 ? latency : std::min(min_, latency);
  max_ = std::max(max_, latency);
  sum_seconds_ += absl::ToDoubleSeconds(latency);
  ++count_;
}

void LatencyHistogram::Merge(const LatencyHistogram& other) {
  if (other.count_ == 0) return;
  for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
  min_ = count_ == 0 ? other.min_ : std::min(min_, other.min_);
  max_ = std::max(max_, other.max_);
  sum_seconds_ += other.sum_seconds_;
  count_ += other.count_;
}

absl::Duration LatencyHistogram::Mean() const {
  if (count_ == 0) return absl::ZeroDuration();
  return absl::Seconds(sum_seconds_ / static_cast<double>(count_));
}

absl::Duration LatencyHistogram::Percentile(double percent) const {
  if (count_ == 0) return absl::ZeroDuration();
  const double exact_rank = percent / 100 * static_cast<double>(count_);
  // 99.9 / 100 is not exact in binary: rank 999 of 1000 must not become 1000.
  const int64_t rank = std::clamp<int64_t>(
      static_cast<int64_t>(std::ceil(exact_rank - 1e-9 * exact_rank)), 1,
      count_);
  int64_t seen = 0;
  for (int64_t i = 0; i < kBucketCount; ++i) {
    seen += counts_[i];
    if (seen >= rank) {
      return std::min(absl::Nanoseconds(BucketEnd(i)), max_);
    }
  }
  return max_;
}

}  // namespace attention::loadtest
