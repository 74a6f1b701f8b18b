// A high-dynamic-range histogram of latencies.
//
// Log-linear buckets over nanoseconds: exact below 2.048 us, from there on 1024
// buckets per power of two, so that a percentile is within 0.1 % (3 significant
// digits) of the exact one from 1 us to 1 h. About 270 KB, whatever is
// recorded. Longer latencies count as 1 h in the percentiles; max() is always
// exact.
//
// Thread-compatible.
#ifndef ATTENTION_CLIENT_LOADTEST_LATENCY_HISTOGRAM_H_
#define ATTENTION_CLIENT_LOADTEST_LATENCY_HISTOGRAM_H_

#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace attention::loadtest {

class LatencyHistogram {
 public:
  LatencyHistogram();

  // A negative latency counts as 0.
  void Record(absl::Duration latency);
  void Merge(const LatencyHistogram& other);

  int64_t count() const { return count_; }
  // The functions below return 0 when nothing was recorded.
  absl::Duration min() const { return min_; }
  absl::Duration max() const { return max_; }
  absl::Duration Mean() const;
  // The smallest latency that at least `percent` (0...100) of all recorded ones
  // do not exceed (nearest rank), rounded up to the end of its bucket.
  absl::Duration Percentile(double percent) const;

 private:
  std::vector<int64_t> counts_;
  int64_t count_ = 0;
  double sum_seconds_ = 0;
  absl::Duration min_;
  absl::Duration max_;
};

}  // namespace attention::loadtest

#endif  // ATTENTION_CLIENT_LOADTEST_LATENCY_HISTOGRAM_H_
