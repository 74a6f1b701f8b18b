// What the scheduler takes, what it puts together and where it sends it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/server/scheduling/scheduler_fixture.h"

namespace attention {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class SchedulerBatchingTest : public SchedulerFixture {};

TEST_F(SchedulerBatchingTest, AnIdleDeviceTakesWorkAtOnce) {
  Start({});
  const Queued work = Enqueue({.tokens = 5});
  EXPECT_THAT(Batches(), ElementsAre(ElementsAre(5)));
  EXPECT_EQ(device().records()[0].flush_reason, FlushReason::kIdle);
  EXPECT_EQ(device().records()[0].start_time, clock_.Now());
  EXPECT_EQ(work.probe->answers(), 0);
  device().Finish();
  EXPECT_TRUE(work.probe->Await().ok());
}

TEST_F(SchedulerBatchingTest, WorkGathersWhileTheDeviceIsBusy) {
  Start({});
  Enqueue({.tokens = 1});
  Enqueue({.tokens = 2});
  Enqueue({.tokens = 3});
  Enqueue({.tokens = 4});
  EXPECT_THAT(Batches(), ElementsAre(ElementsAre(1)));
  EXPECT_EQ(QueuedRequests(), 3);
  EXPECT_EQ(QueuedBytes(), 3);
  clock_.Advance(absl::Milliseconds(40));
  device().Finish();
  EXPECT_THAT(Batches(), ElementsAre(ElementsAre(1), ElementsAre(2, 3, 4)));
  EXPECT_EQ(QueuedRequests(), 0);
  device().Finish();
  EXPECT_EQ(device().in_flight(), 0u);

  const auto queue = reader_.Histogram(
      "attention_phase_duration_seconds",
      {{"phase", "queue"},
       {"config",
        reader_.LabelValues("attention_queue_requests", "config").front()}});
  ASSERT_TRUE(queue.has_value());
  EXPECT_EQ(queue->sample_count, 4u);
  EXPECT_DOUBLE_EQ(queue->sample_sum, 3 * 0.040);
}

TEST_F(SchedulerBatchingTest, EverySlotIsUsed) {
  Start({}, /*device_count=*/1, /*slot_count=*/2);
  Enqueue({.tokens = 1});
  Enqueue({.tokens = 2});
  Enqueue({.tokens = 3});
  Enqueue({.tokens = 4});
  EXPECT_THAT(Batches(), ElementsAre(ElementsAre(1), ElementsAre(2)));
  device().Finish();
  EXPECT_THAT(Batches(),
              ElementsAre(ElementsAre(1), ElementsAre(2), ElementsAre(3, 4)));
}

TEST_F(SchedulerBatchingTest, LimitsHold) {
  Start({.max_batch_requests = 3,
         .max_batch_bytes = 100,
         .max_batch_tokens = 50});
  Enqueue({.tokens = 1});
  for (int i = 0; i < 4; ++i) Enqueue({.config = 2, .tokens = 2});
  for (int i = 0; i < 3; ++i) Enqueue({.config = 3, .bytes = 50, .tokens = 3});
  for (int i = 0; i < 3; ++i) Enqueue({.config = 4, .tokens = 25});
  Stop();
  // In turns; the last of each configuration comes when all had a turn.
  auto batches = Batches();
  ASSERT_THAT(batches, SizeIs(7));
  std::sort(batches.begin() + 4, batches.end());
  EXPECT_THAT(batches,
              ElementsAre(ElementsAre(1), ElementsAre(2, 2, 2),
                          ElementsAre(3, 3), ElementsAre(25, 25),
                          ElementsAre(2), ElementsAre(3), ElementsAre(25)));
  EXPECT_EQ(device().records()[1].flush_reason, FlushReason::kFull);
  EXPECT_EQ(device().records()[4].flush_reason, FlushReason::kIdle);
}

TEST_F(SchedulerBatchingTest, InterleavedTrafficBatchesFully) {
  Start({.max_batch_requests = 8});
  Enqueue({.config = 9});
  for (int i = 0; i < 32; ++i) Enqueue({.config = 1 + i % 2});
  Stop();
  const auto records = device().records();
  ASSERT_THAT(records, SizeIs(1 + 4));
  for (size_t i = 1; i < records.size(); ++i) {
    EXPECT_THAT(records[i].query_tokens, SizeIs(8));
    EXPECT_EQ(records[i].config, TestConfig(1 + (i - 1) % 2));
  }
}

TEST_F(SchedulerBatchingTest, AFloodStarvesNobody) {
  Start({.max_batch_requests = 4});
  Enqueue({.config = 1});
  for (int i = 0; i < 40; ++i) Enqueue({.config = 1});
  const Queued rare = Enqueue({.config = 2});
  // The flood goes on, always ahead of what the device takes.
  int batches = 0;
  while (rare.probe->answers() == 0) {
    for (int i = 0; i < 4; ++i) Enqueue({.config = 1});
    ASSERT_TRUE(device().Finish());
    ++batches;
  }
  EXPECT_LE(batches, 3);  // the running one, one of the flood, its own
}

TEST_F(SchedulerBatchingTest, ARequestAboveTheBatchBudgetRunsAlone) {
  Start({.max_batch_bytes = 100});
  Enqueue({.tokens = 1});
  Enqueue({.bytes = 10, .tokens = 2});
  Enqueue({.bytes = 1'000'000, .tokens = 3});
  Enqueue({.bytes = 10, .tokens = 4});
  Stop();
  EXPECT_THAT(Batches(), ElementsAre(ElementsAre(1), ElementsAre(2),
                                     ElementsAre(3), ElementsAre(4)));
}

TEST_F(SchedulerBatchingTest, TwoDevicesShareTheLoad) {
  Start({}, /*device_count=*/2, /*slot_count=*/2);
  for (int i = 1; i <= 4; ++i) Enqueue({.tokens = i});
  // The device with less work first: one each, then the second slots.
  EXPECT_THAT(Batches(0), ElementsAre(ElementsAre(1), ElementsAre(3)));
  EXPECT_THAT(Batches(1), ElementsAre(ElementsAre(2), ElementsAre(4)));
}

TEST_F(SchedulerBatchingTest, TheDeviceWithTheLeastPredictedWorkIsNext) {
  Start({}, /*device_count=*/2, /*slot_count=*/2);
  Enqueue({.bytes = 1000, .tokens = 1});
  Enqueue({.bytes = 10, .tokens = 2});
  Enqueue({.bytes = 10, .tokens = 3});
  EXPECT_THAT(Batches(0), ElementsAre(ElementsAre(1)));
  EXPECT_THAT(Batches(1), ElementsAre(ElementsAre(2), ElementsAre(3)));
}

TEST_F(SchedulerBatchingTest, DelayGathersOnAnIdleDevice) {
  Start({.max_batch_requests = 3, .max_queue_delay = absl::Milliseconds(5)});
  const absl::Time due = clock_.Now() + absl::Milliseconds(5);
  const Queued first = Enqueue({.tokens = 1});
  Enqueue({.tokens = 2});
  EXPECT_THAT(Batches(), IsEmpty());
  clock_.AwaitWaiter(due);
  clock_.Advance(absl::Milliseconds(4));
  EXPECT_THAT(Batches(), IsEmpty());
  clock_.Advance(absl::Milliseconds(1));
  device().AwaitInFlight(1);
  EXPECT_THAT(Batches(), ElementsAre(ElementsAre(1, 2)));
  EXPECT_EQ(device().records()[0].flush_reason, FlushReason::kDelay);
  device().Finish();
  EXPECT_TRUE(first.probe->Await().ok());
}

TEST_F(SchedulerBatchingTest, DelayDoesNotHoldBackAFullBatch) {
  Start({.max_batch_requests = 2, .max_queue_delay = absl::Seconds(1)});
  Enqueue({.tokens = 1});
  EXPECT_THAT(Batches(), IsEmpty());
  Enqueue({.tokens = 2});
  EXPECT_THAT(Batches(), ElementsAre(ElementsAre(1, 2)));
  EXPECT_EQ(device().records()[0].flush_reason, FlushReason::kFull);
}

TEST_F(SchedulerBatchingTest, TimeSpentBehindABusyDeviceCountsAsDelay) {
  Start({.max_queue_delay = absl::Milliseconds(5)});
  Enqueue({.tokens = 1});
  clock_.Advance(absl::Milliseconds(5));
  device().AwaitInFlight(1);
  Enqueue({.tokens = 2});
  clock_.Advance(absl::Milliseconds(5));
  device().Finish();
  EXPECT_THAT(Batches(), ElementsAre(ElementsAre(1), ElementsAre(2)));
}

TEST_F(SchedulerBatchingTest, RefusesAboveTheRequestBound) {
  Start({.max_queued_requests = 2});
  for (int i = 0; i < 3; ++i) Enqueue({});  // one runs, two wait
  const absl::Status status = Refused({});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(status), error_reason::kQueueFull);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("2 requests wait of at most 2"));
  EXPECT_EQ(Refusals("queue_full_requests"), 1);
  device().Finish();
  Enqueue({});
}

TEST_F(SchedulerBatchingTest, RefusesAboveTheByteBound) {
  Start({.max_queued_bytes = 100});
  Enqueue({.bytes = 1});
  Enqueue({.bytes = 60});
  const absl::Status status = Refused({.bytes = 41});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(status), error_reason::kQueueFull);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("60 bytes wait of at most 100, the request has 41"));
  EXPECT_EQ(Refusals("queue_full_bytes"), 1);
  Enqueue({.bytes = 40});
  EXPECT_EQ(QueuedBytes(), 100);
}

TEST_F(SchedulerBatchingTest, AnEmptyQueueTakesARequestAboveItsBound) {
  Start({.max_queued_bytes = 100});
  Enqueue({});
  Enqueue({.bytes = 101});  // could otherwise never run
  EXPECT_EQ(Refused({.bytes = 1}).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(SchedulerBatchingTest, RefusesWhatCouldNeverRun) {
  Start({.max_request_bytes = 1000});
  const absl::Status status = Refused({.bytes = 1001});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(status), error_reason::kRequestTooLarge);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("at most 1000 bytes; got 1001"));
  EXPECT_EQ(Refusals("too_large"), 1);
  Enqueue({.bytes = 1000});
}

TEST_F(SchedulerBatchingTest, RetryDelayIsTheTimeForHalfTheQueue) {
  Start({.max_batch_requests = 10, .max_queued_requests = 10'000},
        /*device_count=*/2);
  EXPECT_EQ(scheduler_->RetryDelay(), absl::Milliseconds(10));
  // Batches of one request, 400 ms each, on both devices.
  for (int i = 0; i < 6; ++i) Enqueue({.config = 1 + i});
  for (int i = 0; i < 3; ++i) {
    clock_.Advance(absl::Milliseconds(400));
    device(0).Finish();
    device(1).Finish();
  }
  EXPECT_EQ(device(0).in_flight() + device(1).in_flight(), 0u);
  Enqueue({});
  Enqueue({});
  EXPECT_EQ(scheduler_->RetryDelay(), absl::Milliseconds(10));  // none waits
  for (int i = 0; i < 10; ++i) Enqueue({.config = 1 + i});
  // Half of 10 batches at 400 ms each, over 2 devices.
  EXPECT_LT(absl::AbsDuration(scheduler_->RetryDelay() - absl::Seconds(1)),
            absl::Microseconds(100));
  EXPECT_NEAR(reader_.Value("attention_queue_predicted_seconds").value_or(-1),
              2.0, 1e-3);
  for (int i = 0; i < 1000; ++i) Enqueue({});  // a hundred batches
  EXPECT_EQ(scheduler_->RetryDelay(), absl::Seconds(5));
}

TEST_F(SchedulerBatchingTest, RefusesOptionsOutOfRange) {
  PuppetDevice puppet;
  PuppetDevice without_slots("puppet:1", 0);
  const auto create = [&](const Scheduler::Options& options,
                          std::vector<Device*> devices) {
    return Scheduler::Create(options, std::move(devices), &metrics_, &clock_)
        .status();
  };
  const auto expect_invalid = [&](const absl::Status& status,
                                  const char* text) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  expect_invalid(create({.max_batch_requests = 0}, {&puppet}),
                 "max_batch_requests must be at least 1; got 0");
  expect_invalid(create({.max_batch_bytes = 0}, {&puppet}), "max_batch_bytes");
  expect_invalid(create({.max_batch_tokens = -1}, {&puppet}),
                 "max_batch_tokens must be at least 1; got -1");
  expect_invalid(create({.max_queued_requests = 0}, {&puppet}),
                 "max_queued_requests");
  expect_invalid(create({.max_queued_bytes = 0}, {&puppet}),
                 "max_queued_bytes");
  expect_invalid(create({.max_request_bytes = 0}, {&puppet}),
                 "max_request_bytes");
  expect_invalid(create({.max_queue_delay = -absl::Seconds(1)}, {&puppet}),
                 "max_queue_delay must be finite and not negative; got -1s");
  expect_invalid(
      create({.max_queue_delay = absl::InfiniteDuration()}, {&puppet}),
      "max_queue_delay");
  expect_invalid(create({.max_batch_time = -absl::Seconds(1)}, {&puppet}),
                 "max_batch_time must be finite and not negative; got -1s");
  expect_invalid(
      create({.max_queued_time = absl::InfiniteDuration()}, {&puppet}),
      "max_queued_time");
  expect_invalid(create({.max_tenants = 0}, {&puppet}), "max_tenants");
  expect_invalid(create({}, {}), "at least one device");
  expect_invalid(create({}, {&without_slots}), "puppet:1");
}

}  // namespace
}  // namespace attention
