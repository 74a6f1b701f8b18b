// What is exported: buckets, labels, pools and names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "server/engine/error_reason.h"
#include "server/memory/memory_pool.h"
#include "server/metrics/metrics.h"
#include "server/metrics/session_metrics.h"
#include "tests/server/metrics/metrics_fixture.h"

namespace attention {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Optional;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

class SomeSessions final : public SessionUsageSource {
 public:
  SessionUsage session_usage() const override {
    return {.session_count = 3,
            .resident_tokens = 5000,
            .page_count = {.used = 100,
                           .shared = 40,
                           .reserved = 7,
                           .free = 21,
                           .spilled = 13},
            .page_bytes = {.used = 100'000,
                           .shared = 40'000,
                           .reserved = 7000,
                           .free = 21'000,
                           .spilled = 13'000},
            .budget_bytes = 1'000'000,
            .spill_budget_bytes = 50'000};
  }
};

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

TEST_F(MetricsTest, SessionsAreReadWhenScraped) {
  const SomeSessions sessions;
  metrics_.AddSessions(&sessions, "cuda:0");
  metrics_.AddSessions(&sessions, "cuda:1");
  EXPECT_THAT(reader_.Value("attention_sessions", {{"device", "cuda:1"}}),
              Optional(3));
  EXPECT_THAT(reader_.Value("attention_session_resident_tokens",
                            {{"device", "cuda:0"}}),
              Optional(5000));
  const auto value = [this](const char* name, const char* state) {
    return reader_.Value(name, {{"device", "cuda:0"}, {"state", state}});
  };
  EXPECT_THAT(value("attention_session_pages", "used"), Optional(100));
  EXPECT_THAT(value("attention_session_pages", "shared"), Optional(40));
  EXPECT_THAT(value("attention_session_pages", "reserved"), Optional(7));
  EXPECT_THAT(value("attention_session_pages", "free"), Optional(21));
  EXPECT_THAT(value("attention_session_pages", "spilled"), Optional(13));
  EXPECT_THAT(value("attention_session_page_bytes", "free"), Optional(21'000));
  EXPECT_THAT(value("attention_session_page_bytes", "spilled"),
              Optional(13'000));
  EXPECT_THAT(value("attention_session_page_bytes", "spill_budget"),
              Optional(50'000));
  EXPECT_THAT(value("attention_session_page_bytes", "budget"),
              Optional(1'000'000));
  metrics_.RemoveSessions(&sessions);
  EXPECT_THAT(reader_.LabelValues("attention_sessions", "device"), IsEmpty());
}

TEST_F(MetricsTest, CountsWhatSessionsDo) {
  SessionMetrics& sessions = metrics_.sessions();
  sessions.Happened(SessionEvent::kForked);
  sessions.Happened(SessionEvent::kForked);
  sessions.Refused(error_reason::kCacheFull);
  sessions.Appended(9, 0);
  sessions.Appended(1, 1);
  sessions.Spilled(6, 6000);
  sessions.Spilled(1, 1000);
  sessions.Restored(2, 2000);
  sessions.Found(4096);
  EXPECT_THAT(
      reader_.Value("attention_session_events_total", {{"event", "forked"}}),
      Optional(2));
  EXPECT_THAT(
      reader_.Value("attention_session_events_total", {{"event", "expired"}}),
      Optional(0));
  EXPECT_THAT(reader_.Value("attention_session_refusals_total",
                            {{"reason", "CACHE_FULL"}}),
              Optional(1));
  EXPECT_THAT(reader_.Value("attention_session_refusals_total",
                            {{"reason", "QUOTA_EXCEEDED"}}),
              Optional(0));
  EXPECT_THAT(reader_.Value("attention_session_appended_tokens_total"),
              Optional(10));
  EXPECT_THAT(reader_.Value("attention_session_page_copies_total"),
              Optional(1));
  const auto moved = [this](const char* name, const char* direction) {
    return reader_.Value(name, {{"direction", direction}});
  };
  EXPECT_THAT(moved("attention_session_moved_pages_total", "spill"),
              Optional(7));
  EXPECT_THAT(moved("attention_session_moved_bytes_total", "spill"),
              Optional(7000));
  EXPECT_THAT(moved("attention_session_moved_pages_total", "restore"),
              Optional(2));
  EXPECT_THAT(moved("attention_session_moved_bytes_total", "restore"),
              Optional(2000));
  EXPECT_EQ(reader_.Histogram("attention_session_found_tokens")->sample_sum,
            4096);
}

TEST_F(MetricsTest, BuildInfoIsOne) {
  EXPECT_THAT(reader_.Value("attention_build_info",
                            {{"version", "1.2.3"}, {"backend", "cpu"}}),
              Optional(1));
}

TEST_F(MetricsTest, EveryDocumentedMetricIsExportedOnce) {
  MemoryPool pool({.name = "host", .budget_bytes = 1}, MakeHostAllocator());
  metrics_.AddPool(&pool, "cpu:0");
  const SomeSessions sessions;
  metrics_.AddSessions(&sessions, "cpu:0");
  UseAll(metrics_);
  const std::string text = reader_.Text();
  metrics_.RemoveSessions(&sessions);
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
      names,
      UnorderedElementsAre(
          "attention_requests_started_total", "attention_requests_total",
          "attention_requests_in_flight", "attention_phase_duration_seconds",
          "attention_batch_requests", "attention_batch_sequences",
          "attention_batch_query_tokens", "attention_batches_total",
          "attention_batches_in_flight", "attention_batch_failures_total",
          "attention_queue_requests", "attention_queue_bytes",
          "attention_shared_memory_bytes_total",
          "attention_shared_memory_regions",
          "attention_shared_memory_region_bytes", "attention_uploads",
          "attention_upload_bytes", "attention_upload_events_total",
          "attention_queue_limit", "attention_queue_predicted_seconds",
          "attention_batch_prediction_ratio", "attention_refused_total",
          "attention_dropped_total", "attention_bytes_total",
          "attention_copied_bytes_total", "attention_flops_total",
          "attention_compute_seconds_total",
          "attention_achieved_flops_per_second",
          "attention_resident_bytes_read_total",
          "attention_achieved_resident_bytes_per_second",
          "attention_memory_bytes", "attention_build_info",
          "attention_sessions", "attention_session_resident_tokens",
          "attention_session_pages", "attention_session_page_bytes",
          "attention_session_events_total", "attention_session_refusals_total",
          "attention_session_appended_tokens_total",
          "attention_session_page_copies_total",
          "attention_session_moved_pages_total",
          "attention_session_moved_bytes_total",
          "attention_session_found_tokens"));
}

}  // namespace
}  // namespace attention
