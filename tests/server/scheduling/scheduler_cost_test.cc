// What the scheduler does with its predictions: refuses, limits, and shares the
// devices among tenants in time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/server/scheduling/scheduler_fixture.h"

namespace attention {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kMs = absl::Milliseconds(1);

class SchedulerCostTest : public SchedulerFixture {
 protected:
  // Runs batches of one request until the device is known to take `time`.
  void Teach(absl::Duration time, int batches = 60, size_t device_index = 0) {
    for (int i = 0; i < batches; ++i) {
      Enqueue({});
      clock_.Advance(time);
      ASSERT_TRUE(device(device_index).Finish());
    }
  }
  absl::Time In(absl::Duration duration) { return clock_.Now() + duration; }
};

TEST_F(SchedulerCostTest, RefusesADeadlineThatCannotBeMet) {
  Start({});
  Teach(100 * kMs);
  // Even at two thirds of the prediction it would be late.
  const absl::Status status = Refused({.deadline = In(60 * kMs)});
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ReasonOf(status), error_reason::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("cannot be met: 60ms are left"));
  EXPECT_EQ(Refusals("deadline_predicted"), 1);
  EXPECT_EQ(Refusals("deadline"), 0);
  // Between the estimate and the prediction it has its chance.
  Enqueue({.deadline = In(75 * kMs)});
  // The one that runs counts as well, for what is left of it.
  EXPECT_EQ(ReasonOf(Refused({.deadline = In(125 * kMs)})),
            error_reason::kDeadlineExceeded);
  clock_.Advance(40 * kMs);
  Enqueue({.deadline = In(110 * kMs)});
  Enqueue({});
}

TEST_F(SchedulerCostTest, WorksAheadInItsQueueCount) {
  Start({.max_batch_requests = 1});
  // Whose time is in their bytes.
  const WorkSpec large = {.bytes = size_t{1} << 27};
  for (int i = 0; i < 60; ++i) {
    Enqueue(large);
    clock_.Advance(100 * kMs);
    ASSERT_TRUE(device().Finish());
  }
  for (int i = 0; i < 11; ++i) Enqueue(large);  // 10 wait
  WorkSpec late = large;
  late.deadline = In(700 * kMs);
  // It would be first: an earlier deadline than all.
  Enqueue(late);
  late.priority = -1;
  EXPECT_EQ(ReasonOf(Refused(late)), error_reason::kDeadlineExceeded);
  // Another tenant's flood, or another configuration's, is not held against it.
  late.tenant = "other";
  Enqueue(late);
  late.tenant = "";
  late.config = 2;
  Enqueue(late);
}

TEST_F(SchedulerCostTest, RefusesNothingBeforeItKnowsTheDevice) {
  Start({});
  Teach(100 * kMs, /*batches=*/15);
  Enqueue({.deadline = In(kMs)});
  device().Finish();
  // Of another class nothing is known.
  Teach(100 * kMs, 60);
  auto work = MakeWork({.deadline = In(kMs)});
  work->config.data_type = DataType::kFloat16;
  Probe& probe = probes_.emplace_back();
  work = probe.Attach(std::move(work));
  EXPECT_TRUE(scheduler_->Enqueue(work).ok());
}

TEST_F(SchedulerCostTest, AFreeDeviceIsNotTakenForABusyOne) {
  Start({}, /*device_count=*/2);
  for (int i = 0; i < 40; ++i) {
    Enqueue({});
    Enqueue({});
    clock_.Advance(100 * kMs);
    ASSERT_TRUE(device(0).Finish());
    ASSERT_TRUE(device(1).Finish());
  }
  Enqueue({});
  Enqueue({.deadline = In(75 * kMs)});  // on the other device
  EXPECT_EQ(ReasonOf(Refused({.deadline = In(75 * kMs)})),
            error_reason::kDeadlineExceeded);
}

// Batches whose times vary much: what would have met its deadline is taken.
TEST_F(SchedulerCostTest, UncertainPredictionsRefuseLess) {
  Start({});
  for (int i = 0; i < 100; ++i) Teach(i % 2 == 0 ? 25 * kMs : 400 * kMs, 1);
  Enqueue({.deadline = In(26 * kMs)});
}

TEST_F(SchedulerCostTest, LimitsTheTimeThatWaits) {
  Start({.max_queued_time = 250 * kMs});
  Teach(100 * kMs);
  Enqueue({});
  for (int i = 1; i <= 3; ++i) Enqueue({.config = i});  // 0, 100 and 200 ms wait
  const absl::Status status = Refused({.config = 4});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(status), error_reason::kQueueFull);
  EXPECT_THAT(std::string(status.message()), HasSubstr("of at most 250ms"));
  EXPECT_EQ(Refusals("queue_full_time"), 1);
  EXPECT_NEAR(reader_.Value("attention_queue_predicted_seconds").value_or(-1),
              0.3, 0.001);
  EXPECT_NEAR(absl::ToDoubleMilliseconds(scheduler_->RetryDelay()), 150, 1);
  device().Finish();
  Enqueue({.config = 4});
  Stop();
  EXPECT_EQ(reader_.Value("attention_queue_predicted_seconds"), 0);
}

TEST_F(SchedulerCostTest, LimitsTheTimeOfABatch) {
  Start({.max_batch_time = 30 * kMs});
  const WorkSpec work = {.bytes = size_t{1} << 27};
  for (int i = 0; i < 60; ++i) {
    Enqueue(work);
    clock_.Advance(10 * kMs);
    ASSERT_TRUE(device().Finish());
  }
  Enqueue({.config = 2});
  for (int i = 0; i < 8; ++i) Enqueue(work);
  Stop();
  const auto records = device().records();
  EXPECT_EQ(records[61].query_tokens.size(), 3u);
  EXPECT_EQ(records[61].flush_reason, FlushReason::kFull);
  EXPECT_EQ(records[63].query_tokens.size(), 2u);
}

TEST_F(SchedulerCostTest, ReportsHowGoodPredictionsAre) {
  Start({});
  Teach(100 * kMs, 40);
  const auto ratio = reader_.Histogram("attention_batch_prediction_ratio",
                                       {{"device", "puppet:0"}});
  ASSERT_TRUE(ratio.has_value());
  EXPECT_EQ(ratio->sample_count, 40u);
  const double before = ratio->sample_sum;
  Teach(150 * kMs, 1);
  EXPECT_NEAR(reader_.Histogram("attention_batch_prediction_ratio",
                                {{"device", "puppet:0"}})
                      ->sample_sum -
                  before,
              1.5, 1e-6);
}

TEST_F(SchedulerCostTest, AFailedDeviceTeachesNothing) {
  Start({}, /*device_count=*/2);
  Enqueue({});
  clock_.Advance(kMs);
  device(0).SetHealth(absl::InternalError("gone"));
  device(0).Finish(absl::UnavailableError("gone"));
  EXPECT_FALSE(reader_.Histogram("attention_batch_prediction_ratio",
                                 {{"device", "puppet:0"}})
                   .has_value());
}

// A slow device and a fast one: who is done first gets more.
TEST_F(SchedulerCostTest, DevicesAreBalancedByPredictedTime) {
  Start({.max_batch_requests = 1}, /*device_count=*/2, /*slot_count=*/4);
  for (int i = 0; i < 30; ++i) {
    Enqueue({});
    Enqueue({});
    clock_.Advance(10 * kMs);
    while (device(0).Finish()) {
    }
    clock_.Advance(40 * kMs);
    while (device(1).Finish()) {
    }
  }
  const size_t before[] = {Batches(0).size(), Batches(1).size()};
  for (int i = 0; i < 5; ++i) Enqueue({});
  EXPECT_EQ(Batches(0).size() - before[0], 4u);
  EXPECT_EQ(Batches(1).size() - before[1], 1u);
}

// The thread that brings a work computes it, if that is over soon and nobody
// waits: never what comes after it.
TEST_F(SchedulerCostTest, OnlyAShortBatchThatFindsTheDeviceIdleIsMarked) {
  Start({.max_batch_requests = 1, .max_inline_time = 5 * kMs});
  Teach(10 * kMs);
  Enqueue({});
  EXPECT_FALSE(device().records().back().is_short);
  device().Finish();
  Teach(kMs);
  Enqueue({});
  EXPECT_TRUE(device().records().back().is_short);
  Enqueue({});  // waits
  device().Finish();
  EXPECT_FALSE(device().records().back().is_short);
}

TEST_F(SchedulerCostTest, WithoutAnInlineTimeNoBatchIsMarked) {
  Start({.max_inline_time = absl::ZeroDuration()});
  Teach(absl::Nanoseconds(1));
  for (const auto& record : device().records()) EXPECT_FALSE(record.is_short);
}

TEST_F(SchedulerCostTest, AThreadThatHasOtherThingsToDoComputesNoBatch) {
  bool may_run = false;
  Start({.max_inline_time = 5 * kMs, .may_run_inline = [&] { return may_run; }});
  Teach(kMs);
  Enqueue({});
  EXPECT_FALSE(device().records().back().is_short);
  device().Finish();
  may_run = true;
  Enqueue({});
  EXPECT_TRUE(device().records().back().is_short);
}

// One tenant floods with long works while another has one short work at a time:
// however long the flood, it waits for what runs and at most for one more.
TEST_F(SchedulerCostTest, AFloodDelaysAnotherTenantByItsTurnsOnly) {
  for (const int flood_size : {10, 300}) {
    Start({.max_batch_requests = 4});
    Teach(10 * kMs);
    for (int i = 0; i < flood_size; ++i) Enqueue({.tenant = "flood"});
    absl::Duration worst;
    for (int i = 0; i < 20; ++i) {
      const absl::Time arrival = clock_.Now();
      const Queued rare = Enqueue({.config = 2, .tenant = "rare"});
      while (rare.probe->answers() == 0) {
        for (int j = 0; j < 4; ++j) Enqueue({.tenant = "flood"});
        clock_.Advance(10 * kMs);
        ASSERT_TRUE(device().Finish());
      }
      worst = std::max(worst, rare.probe->start_time() - arrival);
    }
    EXPECT_LE(worst, 20 * kMs);
    Stop();
    devices_.clear();
  }
}

}  // namespace
}  // namespace attention
