// What the tests of Metrics have in common.
#ifndef ATTENTION_TESTS_SERVER_METRICS_METRICS_FIXTURE_H_
#define ATTENTION_TESTS_SERVER_METRICS_METRICS_FIXTURE_H_

#include <gtest/gtest.h>

#include <string>

#include "kernels/validation.h"
#include "server/metrics/metrics.h"
#include "tests/server/metrics/metric_reader.h"

namespace attention {

inline HeadConfig MakeConfig(int head_count = 16) {
  return {.data_type = DataType::kBFloat16,
          .head_dim_qk = 128,
          .head_dim_v = 128,
          .query_head_count = head_count,
          .kv_head_count = 1,
          .mask = MaskKind::kNone};
}

inline Metrics::BatchReport MakeReport() {
  return {.config = MakeConfig(),
          .flush_reason = FlushReason::kFull,
          .device = "cpu:0",
          .request_count = 3,
          .sequence_count = 5,
          .query_tokens = 700,
          .flops = 4e9,
          .copied_in_bytes = 1000,
          .copied_out_bytes = 300,
          .copy_in = absl::Microseconds(70),
          .compute = absl::Milliseconds(2),
          .copy_out = absl::Microseconds(30)};
}

// Calls everything once, so that every series there can be is there.
inline void UseAll(Metrics& metrics) {
  const HeadConfig config = MakeConfig();
  metrics.RequestStarted();
  metrics.BytesReceived(34);
  metrics.BytesSent(17);
  for (Phase phase : {Phase::kReceive, Phase::kQueue, Phase::kSend}) {
    metrics.PhaseFinished(phase, config, absl::Milliseconds(3));
  }
  metrics.WorkQueued(config, 10);
  metrics.WorkDequeued(config, 10);
  metrics.WorkRefused("too_large");
  metrics.WorkDropped("deadline");
  metrics.BatchStarted("cpu:0");
  metrics.BatchFinished(MakeReport());
  metrics.BatchStarted("cpu:0");
  metrics.BatchFailed("cpu:0", absl::StatusCode::kUnavailable);
  metrics.RequestFinished(&config, absl::StatusCode::kOk, absl::Seconds(1));
}

class MetricsTest : public testing::Test {
 protected:
  std::string label() const { return ToString(MakeConfig()); }

  Metrics metrics_{
      {.max_config_labels = 32, .version = "1.2.3", .backend = "cpu"}};
  MetricReader reader_{metrics_};
};

}  // namespace attention

#endif  // ATTENTION_TESTS_SERVER_METRICS_METRICS_FIXTURE_H_
