// Reporting under known labels must not allocate. A program of its own, because
// it replaces operator new.
#include <gtest/gtest.h>

#include <new>

#include "server/metrics/metrics.h"
#include "server/metrics/session_metrics.h"
#include "tests/support/allocation_counter.h"

namespace attention {
namespace {

TEST(AllocationCounterTest, SeesAllocations) {
  const AllocationCounter allocations;
  // A direct call, which unlike an expression may not be optimised away.
  ::operator delete(::operator new(100));
  EXPECT_EQ(allocations.count(), 1);
}

TEST(MetricsAllocationTest, KnownLabelsAllocateNothing) {
  Metrics metrics({});
  const HeadConfig config = {.head_dim_qk = 128,
                             .head_dim_v = 128,
                             .query_head_count = 16,
                             .kv_head_count = 8};
  const Metrics::BatchReport report = {.config = config,
                                       .flush_reason = FlushReason::kFull,
                                       .device = "cpu:0",
                                       .request_count = 3,
                                       .flops = 4e9,
                                       .compute = absl::Milliseconds(2)};
  const auto use_all = [&] {
    metrics.RequestStarted();
    metrics.BytesReceived(34);
    metrics.BytesSent(17);
    metrics.PhaseFinished(Phase::kReceive, config, absl::Milliseconds(3));
    metrics.WorkQueued(config, 10);
    metrics.WorkDequeued(config, 10);
    metrics.WorkRefused("too_large");
    metrics.WorkDropped("deadline");
    metrics.SetPredictedQueueTime(absl::Seconds(1));
    metrics.BatchPredicted("cpu:0", absl::Seconds(1), absl::Seconds(2));
    metrics.sessions().Appended(1, 1);
    metrics.sessions().Found(4096);
    metrics.sessions().Refused("CACHE_FULL");
    metrics.BatchStarted("cpu:0");
    metrics.BatchFinished(report);
    metrics.BatchStarted("cpu:0");
    metrics.BatchFailed("cpu:0", absl::StatusCode::kUnavailable);
    metrics.RequestFinished(&config, absl::StatusCode::kOk, absl::Seconds(1));
  };
  use_all();
  const AllocationCounter allocations;
  for (int i = 0; i < 100; ++i) use_all();
  EXPECT_EQ(allocations.count(), 0);
}

}  // namespace
}  // namespace attention
