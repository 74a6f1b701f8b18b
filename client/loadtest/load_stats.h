// What a run measured.
#ifndef ATTENTION_CLIENT_LOADTEST_LOAD_STATS_H_
#define ATTENTION_CLIENT_LOADTEST_LOAD_STATS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "attention/v1/attention.pb.h"
#include "client/loadtest/latency_histogram.h"
#include "client/loadtest/request_shape.h"

namespace attention::loadtest {

struct ErrorCount {
  int64_t count = 0;
  std::string example;  // the first message
};

// What a request and its answer amount to.
struct AnswerSize {
  int64_t query_tokens = 0;
  double bytes_out = 0;  // tensor bytes to the server
  double bytes_in = 0;   // tensor bytes from the server
  double flops = 0;      // over visible pairs
};

AnswerSize SizeOf(const RequestShape& shape);

// The measured requests of one shape, or of several merged. Conservation:
// sent = answered + mismatched + errors (all codes).
struct LoadStats {
  int64_t sent = 0;
  int64_t answered = 0;    // and right, as far as verified
  int64_t verified = 0;    // answers compared with the reference
  int64_t mismatched = 0;  // answers that are wrong
  std::string mismatch_example;
  std::map<absl::StatusCode, ErrorCount> errors;

  // Of answers, right or wrong: from the moment the request was due (open loop)
  // or sent (closed loop).
  LatencyHistogram latency;
  LatencyHistogram error_latency;
  // From the moment a request was due until it was sent: what the load tester
  // itself, or its bound on outstanding requests, added. Open loop only.
  LatencyHistogram send_delay;

  // Of answers.
  AnswerSize size;  // of all together

  // Sums over answers, as the server reported them.
  absl::Duration server_queue;
  absl::Duration server_copy_in;
  absl::Duration server_compute;
  absl::Duration server_copy_out;
  int64_t batch_requests = 0;
  int64_t batch_sequences = 0;

  int64_t answers() const { return answered + mismatched; }
  int64_t error_count() const;

  // One more request's end.
  void RecordAnswer(const AnswerSize& size,
                    const v1::ComputeAttentionTimings& timings,
                    absl::Duration latency, bool verified,
                    const absl::Status& check);
  void RecordError(const absl::Status& error, absl::Duration latency);

  void Merge(const LoadStats& other);
};

// All of a run.
struct LoadResult {
  std::vector<LoadStats> shapes;  // as the mix
  // From the end of the warm-up to the last measured request's end; rates are
  // counts by this time.
  absl::Duration elapsed;
  int64_t warmup_sent = 0;
  // Requests that were due but had to wait for --max_outstanding.
  int64_t bound_hits = 0;
  int64_t max_outstanding = 0;  // the most at any moment
  bool stopped = false;         // ended early, by Stop

  LoadStats Total() const;
};

}  // namespace attention::loadtest

#endif  // ATTENTION_CLIENT_LOADTEST_LOAD_STATS_H_
