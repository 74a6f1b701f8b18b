// What is counted: requests, bytes, queues, refusals and batches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/metrics/metrics.h"
#include "tests/server/metrics/metrics_fixture.h"

namespace attention {
namespace {

using ::testing::Optional;
using ::testing::UnorderedElementsAre;

TEST_F(MetricsTest, CountsRequestsByConfigurationAndCode) {
  const HeadConfig config = MakeConfig();
  for (int i = 0; i < 4; ++i) metrics_.RequestStarted();
  EXPECT_THAT(reader_.Value("attention_requests_in_flight"), Optional(4));

  metrics_.RequestFinished(&config, absl::StatusCode::kOk,
                           absl::Milliseconds(5));
  metrics_.RequestFinished(&config, absl::StatusCode::kDeadlineExceeded,
                           absl::Milliseconds(5));
  metrics_.RequestFinished(nullptr, absl::StatusCode::kInvalidArgument,
                           absl::Milliseconds(5));

  EXPECT_THAT(reader_.Value("attention_requests_started_total"), Optional(4));
  EXPECT_THAT(reader_.Value("attention_requests_in_flight"), Optional(1));
  EXPECT_THAT(reader_.Value("attention_requests_total",
                            {{"config", label()}, {"code", "OK"}}),
              Optional(1));
  EXPECT_THAT(
      reader_.Value("attention_requests_total",
                    {{"config", label()}, {"code", "DEADLINE_EXCEEDED"}}),
      Optional(1));
  EXPECT_THAT(
      reader_.Value("attention_requests_total",
                    {{"config", "invalid"}, {"code", "INVALID_ARGUMENT"}}),
      Optional(1));
}

TEST_F(MetricsTest, TotalTimeIsOfAnsweredRequestsOnly) {
  const HeadConfig config = MakeConfig();
  metrics_.RequestStarted();
  metrics_.RequestStarted();
  metrics_.RequestFinished(&config, absl::StatusCode::kResourceExhausted,
                           absl::Microseconds(1));
  metrics_.RequestFinished(&config, absl::StatusCode::kOk, absl::Seconds(2));
  const auto total =
      reader_.Histogram("attention_phase_duration_seconds",
                        {{"phase", "total"}, {"config", label()}});
  ASSERT_TRUE(total.has_value());
  EXPECT_EQ(total->sample_count, 1u);
  EXPECT_DOUBLE_EQ(total->sample_sum, 2.0);
}

TEST_F(MetricsTest, CodesOutsideTheCanonicalOnesAreUnknown) {
  const HeadConfig config = MakeConfig();
  metrics_.RequestStarted();
  metrics_.RequestFinished(&config, static_cast<absl::StatusCode>(999),
                           absl::ZeroDuration());
  EXPECT_THAT(reader_.Value("attention_requests_total",
                            {{"config", label()}, {"code", "UNKNOWN"}}),
              Optional(1));
}

TEST_F(MetricsTest, CountsBytesByDirection) {
  metrics_.BytesReceived(34'000'000'000);
  metrics_.BytesReceived(1);
  metrics_.BytesSent(17);
  EXPECT_THAT(
      reader_.Value("attention_bytes_total", {{"direction", "received"}}),
      Optional(34'000'000'001.0));
  EXPECT_THAT(reader_.Value("attention_bytes_total", {{"direction", "sent"}}),
              Optional(17));
}

TEST_F(MetricsTest, QueueGaugesFollowWhatWaits) {
  const HeadConfig a = MakeConfig(1), b = MakeConfig(2);
  metrics_.WorkQueued(a, 100);
  metrics_.WorkQueued(a, 11);
  metrics_.WorkQueued(b, 7);
  metrics_.WorkDequeued(a, 100);
  EXPECT_THAT(
      reader_.Value("attention_queue_requests", {{"config", ToString(a)}}),
      Optional(1));
  EXPECT_THAT(reader_.Value("attention_queue_bytes", {{"config", ToString(a)}}),
              Optional(11));
  EXPECT_THAT(reader_.Value("attention_queue_bytes", {{"config", ToString(b)}}),
              Optional(7));
  metrics_.WorkDequeued(a, 11);
  metrics_.WorkDequeued(b, 7);
  EXPECT_EQ(reader_.Sum("attention_queue_requests"), 0);
  EXPECT_EQ(reader_.Sum("attention_queue_bytes"), 0);
}

TEST_F(MetricsTest, ExportsTheQueueLimits) {
  metrics_.SetQueueLimits(12, size_t{5} << 32, absl::Milliseconds(1500));
  EXPECT_THAT(reader_.Value("attention_queue_limit", {{"kind", "requests"}}),
              Optional(12));
  EXPECT_THAT(reader_.Value("attention_queue_limit", {{"kind", "bytes"}}),
              Optional(5.0 * (size_t{1} << 32)));
  EXPECT_THAT(reader_.Value("attention_queue_limit", {{"kind", "seconds"}}),
              Optional(1.5));
}

TEST_F(MetricsTest, AQueueWithoutALimitInTimeExportsNone) {
  metrics_.SetQueueLimits(12, 34, absl::ZeroDuration());
  EXPECT_THAT(reader_.LabelValues("attention_queue_limit", "kind"),
              UnorderedElementsAre("requests", "bytes"));
}

TEST_F(MetricsTest, ReportsPredictions) {
  metrics_.SetPredictedQueueTime(absl::Milliseconds(250));
  EXPECT_THAT(reader_.Value("attention_queue_predicted_seconds"),
              Optional(0.25));
  metrics_.BatchPredicted("cpu:0", absl::Milliseconds(2),
                          absl::Milliseconds(3));
  metrics_.BatchPredicted("cpu:0", absl::Milliseconds(2), absl::ZeroDuration());
  metrics_.BatchPredicted("cpu:0", absl::ZeroDuration(), absl::Seconds(1));
  const auto ratio = reader_.Histogram("attention_batch_prediction_ratio",
                                       {{"device", "cpu:0"}});
  ASSERT_TRUE(ratio.has_value());
  EXPECT_EQ(ratio->sample_count, 1u);
  EXPECT_DOUBLE_EQ(ratio->sample_sum, 1.5);
}

TEST_F(MetricsTest, RefusalsAndDropsAreThereFromTheStart) {
  EXPECT_THAT(reader_.LabelValues("attention_refused_total", "reason"),
              UnorderedElementsAre("queue_full_requests", "queue_full_bytes",
                                   "queue_full_time", "too_large", "no_device",
                                   "draining", "device_failed", "deadline",
                                   "deadline_predicted"));
  EXPECT_THAT(reader_.LabelValues("attention_dropped_total", "reason"),
              UnorderedElementsAre("deadline", "cancelled", "draining",
                                   "device_failed"));
  EXPECT_EQ(reader_.Sum("attention_refused_total"), 0);
  metrics_.WorkRefused("draining");
  metrics_.WorkDropped("cancelled");
  EXPECT_THAT(
      reader_.Value("attention_refused_total", {{"reason", "draining"}}),
      Optional(1));
  EXPECT_EQ(reader_.Sum("attention_refused_total"), 1);
  EXPECT_THAT(
      reader_.Value("attention_dropped_total", {{"reason", "cancelled"}}),
      Optional(1));
}

TEST_F(MetricsTest, ReportsBatches) {
  metrics_.BatchStarted("cpu:0");
  metrics_.BatchStarted("cpu:0");
  EXPECT_THAT(
      reader_.Value("attention_batches_in_flight", {{"device", "cpu:0"}}),
      Optional(2));
  metrics_.BatchFinished(MakeReport());
  metrics_.BatchFailed("cpu:0", absl::StatusCode::kInternal);

  const MetricReader::Labels device = {{"device", "cpu:0"}};
  EXPECT_THAT(reader_.Value("attention_batches_in_flight", device),
              Optional(0));
  EXPECT_THAT(reader_.Value("attention_batches_total",
                            {{"device", "cpu:0"}, {"flush_reason", "full"}}),
              Optional(1));
  EXPECT_EQ(reader_.Sum("attention_batches_total"), 1);
  EXPECT_THAT(reader_.Value("attention_batch_failures_total",
                            {{"device", "cpu:0"}, {"code", "INTERNAL"}}),
              Optional(1));
  EXPECT_THAT(reader_.Value("attention_copied_bytes_total",
                            {{"device", "cpu:0"}, {"direction", "in"}}),
              Optional(1000));
  EXPECT_THAT(reader_.Value("attention_copied_bytes_total",
                            {{"device", "cpu:0"}, {"direction", "out"}}),
              Optional(300));
  EXPECT_THAT(reader_.Value("attention_flops_total", device), Optional(4e9));
  EXPECT_THAT(reader_.Value("attention_compute_seconds_total", device),
              Optional(0.002));
  EXPECT_THAT(reader_.Value("attention_achieved_flops_per_second", device),
              Optional(2e12));
  EXPECT_EQ(reader_.Histogram("attention_batch_requests")->sample_sum, 3);
  EXPECT_EQ(reader_.Histogram("attention_batch_sequences")->sample_sum, 5);
  EXPECT_EQ(reader_.Histogram("attention_batch_query_tokens")->sample_sum, 700);
}

TEST_F(MetricsTest, PhasesOfABatchCountForEachOfItsRequests) {
  metrics_.BatchStarted("cpu:0");
  metrics_.BatchFinished(MakeReport());
  const auto compute =
      reader_.Histogram("attention_phase_duration_seconds",
                        {{"phase", "compute"}, {"config", label()}});
  ASSERT_TRUE(compute.has_value());
  EXPECT_EQ(compute->sample_count, 3u);
  EXPECT_DOUBLE_EQ(compute->sample_sum, 0.006);
  for (const auto& bucket : compute->bucket) {
    EXPECT_EQ(bucket.cumulative_count, bucket.upper_bound >= 0.002 ? 3u : 0u)
        << "le=" << bucket.upper_bound;
  }
}

TEST_F(MetricsTest, ABatchWithoutComputationLeavesTheRateAlone) {
  metrics_.BatchStarted("cpu:0");
  metrics_.BatchFinished(MakeReport());
  Metrics::BatchReport empty = MakeReport();
  empty.flops = 0;
  empty.compute = absl::ZeroDuration();
  metrics_.BatchStarted("cpu:0");
  metrics_.BatchFinished(empty);
  EXPECT_THAT(reader_.Value("attention_achieved_flops_per_second",
                            {{"device", "cpu:0"}}),
              Optional(2e12));
}

TEST_F(MetricsTest, BytesOfResidentKeysAndTheirRate) {
  const MetricReader::Labels device = {{"device", "cpu:0"}};
  Metrics::BatchReport report = MakeReport();
  report.resident_bytes = 6e9;
  metrics_.BatchStarted("cpu:0");
  metrics_.BatchFinished(report);
  EXPECT_THAT(reader_.Value("attention_resident_bytes_read_total", device),
              Optional(6e9));
  EXPECT_THAT(
      reader_.Value("attention_achieved_resident_bytes_per_second", device),
      Optional(3e12));
  // A batch that reads none leaves the rate alone.
  metrics_.BatchStarted("cpu:0");
  metrics_.BatchFinished(MakeReport());
  EXPECT_THAT(
      reader_.Value("attention_achieved_resident_bytes_per_second", device),
      Optional(3e12));
}

TEST_F(MetricsTest, NegativeTimesCountAsZero) {
  metrics_.PhaseFinished(Phase::kQueue, MakeConfig(), -absl::Seconds(3));
  const auto queue =
      reader_.Histogram("attention_phase_duration_seconds",
                        {{"phase", "queue"}, {"config", label()}});
  EXPECT_EQ(queue->sample_sum, 0);
  EXPECT_EQ(queue->bucket.front().cumulative_count, 1u);
}

}  // namespace
}  // namespace attention
