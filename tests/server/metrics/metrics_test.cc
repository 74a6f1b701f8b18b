#include "server/metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "kernels/validation.h"
#include "server/memory/memory_pool.h"
#include "tests/server/metrics/metric_reader.h"

namespace attention {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Optional;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

HeadConfig MakeConfig(int head_count = 16) {
  return {.data_type = DataType::kBFloat16,
          .head_dim_qk = 128,
          .head_dim_v = 128,
          .query_head_count = head_count,
          .kv_head_count = 1,
          .mask = MaskKind::kNone};
}

Metrics::BatchReport MakeReport() {
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
void UseAll(Metrics& metrics) {
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

TEST_F(MetricsTest, NegativeTimesCountAsZero) {
  metrics_.PhaseFinished(Phase::kQueue, MakeConfig(), -absl::Seconds(3));
  const auto queue =
      reader_.Histogram("attention_phase_duration_seconds",
                        {{"phase", "queue"}, {"config", label()}});
  EXPECT_EQ(queue->sample_sum, 0);
  EXPECT_EQ(queue->bucket.front().cumulative_count, 1u);
}

TEST_F(MetricsTest, BucketsAreTheDocumentedOnes) {
  UseAll(metrics_);
  const auto total =
      reader_.Histogram("attention_phase_duration_seconds",
                        {{"phase", "total"}, {"config", label()}});
  std::vector<double> bounds;
  for (const auto& bucket : total->bucket) bounds.push_back(bucket.upper_bound);
  EXPECT_THAT(bounds, ElementsAre(50e-6, 100e-6, 250e-6, 500e-6, 0.001, 0.002,
                                  0.004, 0.008, 0.016, 0.032, 0.064, 0.128,
                                  0.256, 0.512, 1, 2, 4, 8, 16, 32, 64,
                                  std::numeric_limits<double>::infinity()));
}

TEST_F(MetricsTest, PercentilesAgreeWithExactOnesWithinABucket) {
  std::mt19937_64 random(7);
  std::lognormal_distribution<double> distribution(-6.0, 1.5);  // median 2.5 ms
  std::vector<double> seconds(20'000);
  for (double& value : seconds) {
    value = distribution(random);
    metrics_.PhaseFinished(Phase::kQueue, MakeConfig(), absl::Seconds(value));
  }
  std::sort(seconds.begin(), seconds.end());
  const auto queue =
      reader_.Histogram("attention_phase_duration_seconds",
                        {{"phase", "queue"}, {"config", label()}});
  ASSERT_EQ(queue->sample_count, seconds.size());
  for (double quantile : {0.1, 0.5, 0.9, 0.95, 0.99, 0.999}) {
    const size_t rank = static_cast<size_t>(quantile * seconds.size());
    const double exact = seconds[rank];
    double lower = 0;
    for (const auto& bucket : queue->bucket) {
      if (bucket.cumulative_count > rank) {
        EXPECT_GT(exact, lower) << quantile;
        EXPECT_LE(exact, bucket.upper_bound) << quantile;
        // So that the bound says something: no bucket is wider than 2.5 times.
        if (lower > 0) {
          EXPECT_LE(bucket.upper_bound, 2.5 * lower);
        }
        break;
      }
      lower = bucket.upper_bound;
    }
  }
}

TEST_F(MetricsTest, AFloodOfConfigurationsBecomesOther) {
  // 10,000 configurations, each used twice: the second time must find the label
  // of the first.
  for (int round = 0; round < 2; ++round) {
    for (int i = 1; i <= 10'000; ++i) {
      const HeadConfig config = MakeConfig(i);
      metrics_.RequestStarted();
      metrics_.WorkQueued(config, 5);
      metrics_.WorkDequeued(config, 5);
      metrics_.RequestFinished(&config, absl::StatusCode::kOk,
                               absl::Milliseconds(1));
    }
  }
  for (const char* name :
       {"attention_requests_total", "attention_phase_duration_seconds",
        "attention_queue_requests", "attention_queue_bytes"}) {
    const auto labels = reader_.LabelValues(name, "config");
    EXPECT_THAT(labels, SizeIs(33)) << name;  // 32 and "other"
    EXPECT_THAT(labels, Contains("other")) << name;
  }
  EXPECT_THAT(
      reader_.Value("attention_requests_total",
                    {{"config", ToString(MakeConfig(32))}, {"code", "OK"}}),
      Optional(2));
  EXPECT_THAT(reader_.Value("attention_requests_total",
                            {{"config", "other"}, {"code", "OK"}}),
              Optional(2 * (10'000 - 32)));
  EXPECT_EQ(reader_.Sum("attention_requests_total"), 20'000);
  EXPECT_EQ(reader_.Sum("attention_queue_requests"), 0);
}

TEST(MetricsOptionsTest, WithoutLabelsEverythingIsOther) {
  Metrics metrics({.max_config_labels = 0});
  const HeadConfig config = MakeConfig();
  metrics.RequestStarted();
  metrics.RequestFinished(&config, absl::StatusCode::kOk, absl::Seconds(1));
  EXPECT_THAT(
      MetricReader(metrics).LabelValues("attention_requests_total", "config"),
      ElementsAre("other"));
}

TEST_F(MetricsTest, ConservationHoldsAcrossThreads) {
  constexpr int kThreads = 4, kRequests = 2000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < kRequests; ++i) {
        // More configurations than labels, and every code.
        const HeadConfig config = MakeConfig(1 + (i + t) % 50);
        metrics_.RequestStarted();
        metrics_.WorkQueued(config, static_cast<size_t>(i));
        metrics_.BatchStarted("cpu:0");
        metrics_.BatchFinished(MakeReport());
        metrics_.WorkDequeued(config, static_cast<size_t>(i));
        metrics_.RequestFinished(i % 7 == 0 ? nullptr : &config,
                                 static_cast<absl::StatusCode>(i % 17),
                                 absl::Microseconds(i));
      }
    });
  }
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(reader_.Text().empty());
  for (std::thread& thread : threads) thread.join();

  constexpr double kTotal = kThreads * kRequests;
  EXPECT_THAT(reader_.Value("attention_requests_started_total"),
              Optional(kTotal));
  EXPECT_EQ(reader_.Sum("attention_requests_total"), kTotal);
  EXPECT_THAT(reader_.Value("attention_requests_in_flight"), Optional(0));
  EXPECT_EQ(reader_.Sum("attention_queue_requests"), 0);
  EXPECT_EQ(reader_.Sum("attention_queue_bytes"), 0);
  EXPECT_EQ(reader_.Sum("attention_batches_in_flight"), 0);
  EXPECT_EQ(reader_.Sum("attention_batches_total"), kTotal);
  EXPECT_LE(reader_.LabelValues("attention_queue_requests", "config").size(),
            33u);
}

TEST_F(MetricsTest, PoolsAreReadWhenScraped) {
  MemoryPool host({.name = "host", .budget_bytes = 1 << 20},
                  MakeHostAllocator());
  metrics_.AddPool(&host, "cpu:0");
  const auto value = [this](const char* state) {
    return reader_.Value(
        "attention_memory_bytes",
        {{"pool", "host"}, {"device", "cpu:0"}, {"state", state}});
  };
  EXPECT_THAT(value("budget"), Optional(1 << 20));
  EXPECT_THAT(value("in_use"), Optional(0));
  {
    auto block = host.Allocate(5000);
    ASSERT_TRUE(block.ok()) << block.status();
    const auto in_use = static_cast<double>(host.usage().in_use_bytes);
    EXPECT_GE(in_use, 5000);
    EXPECT_THAT(value("in_use"), Optional(in_use));
  }
  EXPECT_THAT(value("in_use"), Optional(0));
  EXPECT_THAT(value("cached"),
              Optional(static_cast<double>(host.usage().cached_bytes)));

  // The same labels twice would make Prometheus reject the scrape.
  MemoryPool twin({.name = "host", .budget_bytes = 3}, MakeHostAllocator());
  metrics_.AddPool(&twin, "cpu:0");
  EXPECT_THAT(value("budget"), Optional((1 << 20) + 3));
  metrics_.RemovePool(&twin);
  metrics_.RemovePool(&host);
  EXPECT_THAT(value("budget"), testing::Eq(std::nullopt));
}

TEST_F(MetricsTest, BuildInfoIsOne) {
  EXPECT_THAT(reader_.Value("attention_build_info",
                            {{"version", "1.2.3"}, {"backend", "cpu"}}),
              Optional(1));
}

TEST_F(MetricsTest, EveryDocumentedMetricIsExportedOnce) {
  MemoryPool pool({.name = "host", .budget_bytes = 1}, MakeHostAllocator());
  metrics_.AddPool(&pool, "cpu:0");
  UseAll(metrics_);
  const std::string text = reader_.Text();
  metrics_.RemovePool(&pool);
  std::set<std::string> names;
  const std::string prefix = "# TYPE ";
  for (size_t at = text.find(prefix); at != std::string::npos;
       at = text.find(prefix, at + 1)) {
    const size_t begin = at + prefix.size();
    EXPECT_TRUE(
        names.insert(text.substr(begin, text.find(' ', begin) - begin)).second);
  }
  EXPECT_THAT(
      names, UnorderedElementsAre(
                 "attention_requests_started_total", "attention_requests_total",
                 "attention_requests_in_flight",
                 "attention_phase_duration_seconds", "attention_batch_requests",
                 "attention_batch_sequences", "attention_batch_query_tokens",
                 "attention_batches_total", "attention_batches_in_flight",
                 "attention_batch_failures_total", "attention_queue_requests",
                 "attention_queue_bytes", "attention_shared_memory_bytes_total",
                 "attention_shared_memory_regions",
                 "attention_shared_memory_region_bytes",
                 "attention_queue_limit", "attention_queue_predicted_seconds",
                 "attention_batch_prediction_ratio", "attention_refused_total",
                 "attention_dropped_total", "attention_bytes_total",
                 "attention_copied_bytes_total", "attention_flops_total",
                 "attention_compute_seconds_total",
                 "attention_achieved_flops_per_second",
                 "attention_memory_bytes", "attention_build_info"));
}

}  // namespace
}  // namespace attention
