// The figures that every form of the report shows.
#ifndef ATTENTION_CLIENT_LOADTEST_REPORT_NUMBERS_H_
#define ATTENTION_CLIENT_LOADTEST_REPORT_NUMBERS_H_

#include "absl/time/time.h"
#include "client/loadtest/decode_plan.h"
#include "client/loadtest/load_stats.h"

namespace attention::loadtest {

inline constexpr struct {
  const char* name;
  double percent;
} kPercentiles[] = {{"p50", 50}, {"p75", 75}, {"p90", 90},
                    {"p95", 95}, {"p99", 99}, {"p99.9", 99.9}};

// Counts divided by the run's time, or 0 for a run of no time.
struct Rates {
  double answers = 0;        // per second
  double query_tokens = 0;   // per second
  double gigabytes_out = 0;  // 10^9 bytes per second, to the server
  double gigabytes_in = 0;   // 10^9 bytes per second, from the server
  double teraflops = 0;      // 10^12 per second

  Rates(const LoadStats& stats, absl::Duration elapsed) {
    const double seconds = absl::ToDoubleSeconds(elapsed);
    if (seconds <= 0) return;
    answers = static_cast<double>(stats.answers()) / seconds;
    query_tokens = static_cast<double>(stats.size.query_tokens) / seconds;
    gigabytes_out = stats.size.bytes_out / seconds / 1e9;
    gigabytes_in = stats.size.bytes_in / seconds / 1e9;
    teraflops = stats.size.flops / seconds / 1e12;
  }
};

// Of a decoding load, likewise. A token counts once, in however many layers.
struct DecodeRates {
  double tokens = 0;  // of all sessions, per second
  double steps = 0;   // of all clients, per second

  DecodeRates(const DecodeLoadResult& result, absl::Duration elapsed) {
    const double seconds = absl::ToDoubleSeconds(elapsed);
    if (seconds <= 0) return;
    tokens = static_cast<double>(result.generated_tokens) / seconds;
    steps = static_cast<double>(result.step_latency.count()) / seconds;
  }
};

// Means over answers, or 0 without any. `elsewhere` is the part of the latency
// that the server does not account for: transfer, decoding, the client.
struct ServerMeans {
  absl::Duration queue, copy_in, compute, copy_out, elsewhere;
  double batch_requests = 0;
  double batch_sequences = 0;

  explicit ServerMeans(const LoadStats& stats) {
    const int64_t count = stats.answers();
    if (count == 0) return;
    queue = stats.server_queue / count;
    copy_in = stats.server_copy_in / count;
    compute = stats.server_compute / count;
    copy_out = stats.server_copy_out / count;
    elsewhere = stats.latency.Mean() - (queue + copy_in + compute + copy_out);
    batch_requests = static_cast<double>(stats.batch_requests) / count;
    batch_sequences = static_cast<double>(stats.batch_sequences) / count;
  }
};

}  // namespace attention::loadtest

#endif  // ATTENTION_CLIENT_LOADTEST_REPORT_NUMBERS_H_
