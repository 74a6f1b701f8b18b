// Bucket bounds of the histograms, and how one value is counted many times.
#ifndef ATTENTION_SERVER_METRICS_BUCKETS_H_
#define ATTENTION_SERVER_METRICS_BUCKETS_H_

#include <prometheus/histogram.h>

#include <vector>

namespace attention {

// Seconds: 50, 100, 250, 500 us, then doubling from 1 to 512 ms and from 1 to
// 64 s. A percentile read from it is at most a factor of 2.5 off.
const std::vector<double>& DurationBuckets();

// Powers of two from 1 to 4096.
const std::vector<double>& BatchRequestBuckets();

// Powers of two from 1 to 65,536.
const std::vector<double>& BatchSequenceBuckets();

// Powers of four from 1 to 4^12 = 16,777,216.
const std::vector<double>& BatchTokenBuckets();

// Powers of two from 1/16 to 16, with 0.75 and 1.5 beside 1.
const std::vector<double>& RatioBuckets();

// Observes `value` `count` times in one step. `buckets` are the histogram's.
void ObserveTimes(prometheus::Histogram& histogram,
                  const std::vector<double>& buckets, double value, int count);

}  // namespace attention

#endif  // ATTENTION_SERVER_METRICS_BUCKETS_H_
