#include "server/metrics/buckets.h"

#include <algorithm>
#include <cstddef>

namespace attention {
namespace {

std::vector<double> Powers(double base, int count) {
  std::vector<double> bounds;
  double bound = 1;
  for (int i = 0; i < count; ++i, bound *= base) bounds.push_back(bound);
  return bounds;
}

}  // namespace

const std::vector<double>& DurationBuckets() {
  static const auto* const buckets = [] {
    auto* bounds = new std::vector<double>{50e-6, 100e-6, 250e-6, 500e-6};
    for (int ms = 1; ms <= 512; ms *= 2) bounds->push_back(ms / 1000.0);
    for (int s = 1; s <= 64; s *= 2) bounds->push_back(s);
    return bounds;
  }();
  return *buckets;
}

const std::vector<double>& BatchRequestBuckets() {
  static const auto* const buckets = new std::vector<double>(Powers(2, 13));
  return *buckets;
}

const std::vector<double>& BatchSequenceBuckets() {
  static const auto* const buckets = new std::vector<double>(Powers(2, 17));
  return *buckets;
}

const std::vector<double>& BatchTokenBuckets() {
  static const auto* const buckets = new std::vector<double>(Powers(4, 13));
  return *buckets;
}

const std::vector<double>& RatioBuckets() {
  static const auto* const buckets = new std::vector<double>{
      0.0625, 0.125, 0.25, 0.5, 0.75, 1, 1.5, 2, 4, 8, 16};
  return *buckets;
}

void ObserveTimes(prometheus::Histogram& histogram,
                  const std::vector<double>& buckets, double value, int count) {
  if (count == 1) {
    histogram.Observe(value);
    return;
  }
  // Kept between calls, so that a batch allocates nothing.
  thread_local std::vector<double> increments;
  increments.assign(buckets.size() + 1, 0.0);
  const size_t index =
      std::lower_bound(buckets.begin(), buckets.end(), value) - buckets.begin();
  increments[index] = count;
  histogram.ObserveMultiple(increments, value * count);
}

}  // namespace attention
