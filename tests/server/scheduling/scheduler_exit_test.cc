// The ways out of the queue other than a batch: deadlines, cancellation, drain,
// failed devices, destruction; and callbacks that misbehave.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

#include "absl/synchronization/notification.h"
#include "tests/server/scheduling/scheduler_fixture.h"

namespace attention {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class SchedulerExitTest : public SchedulerFixture {
 protected:
  absl::Time In(absl::Duration duration) { return clock_.Now() + duration; }
};

// --- Deadlines ---------------------------------------------------------------

TEST_F(SchedulerExitTest, ExpiredWorkIsAnsweredWhileTheDeviceIsBusy) {
  Start({});
  Enqueue({.tokens = 1});
  const Queued late =
      Enqueue({.tokens = 2, .deadline = In(absl::Milliseconds(30))});
  const Queued patient = Enqueue({.tokens = 3});
  clock_.Advance(absl::Milliseconds(29));
  EXPECT_EQ(late.probe->answers(), 0);
  clock_.Advance(absl::Milliseconds(1));
  const absl::Status status = late.probe->Await();  // the device is still busy
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ReasonOf(status), error_reason::kDeadlineExceeded);
  EXPECT_EQ(device().in_flight(), 1u);
  EXPECT_EQ(Drops("deadline"), 1);
  Stop();
  EXPECT_THAT(Batches(), ElementsAre(ElementsAre(1), ElementsAre(3)));
  EXPECT_TRUE(patient.probe->Await().ok());
}

TEST_F(SchedulerExitTest, AnEarlierDeadlineMovesTheTimerForward) {
  Start({});
  Enqueue({});
  const absl::Time far = In(absl::Hours(1)), near = In(absl::Seconds(1));
  const Queued first = Enqueue({.deadline = far});
  clock_.AwaitWaiter(far);
  const Queued second = Enqueue({.deadline = near});
  clock_.AwaitWaiter(near);
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(second.probe->Await().code(), absl::StatusCode::kDeadlineExceeded);
  clock_.AwaitWaiter(far);
  EXPECT_EQ(first.probe->answers(), 0);
}

TEST_F(SchedulerExitTest, WorkThatExpiresWhenASlotFreesDoesNotRun) {
  Start({});
  Enqueue({.tokens = 1});
  // The timer's thread and the device race for it: both must drop it.
  const Queued late = Enqueue({.tokens = 2, .deadline = In(absl::Seconds(1))});
  clock_.Advance(absl::Seconds(1));
  device().Finish();
  EXPECT_EQ(late.probe->Await().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Batches(), ElementsAre(ElementsAre(1)));
}

TEST_F(SchedulerExitTest, APassedDeadlineIsRefused) {
  Start({});
  for (absl::Time deadline : {clock_.Now(), In(-absl::Seconds(1))}) {
    const absl::Status status = Refused({.deadline = deadline});
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(ReasonOf(status), error_reason::kDeadlineExceeded);
  }
  EXPECT_EQ(Refusals("deadline"), 2);
  EXPECT_THAT(Batches(), SizeIs(0));
}

TEST_F(SchedulerExitTest, ADeadlineAlsoEndsAHeldBackBatch) {
  Start({.max_queue_delay = absl::Seconds(10)});
  const Queued late = Enqueue({.deadline = In(absl::Seconds(1))});
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(late.probe->Await().code(), absl::StatusCode::kDeadlineExceeded);
}

// --- Cancellation ------------------------------------------------------------

TEST_F(SchedulerExitTest, CancelsQueuedWork) {
  Start({});
  Enqueue({.tokens = 1});
  const Queued unwanted =
      Enqueue({.tokens = 2, .deadline = In(absl::Seconds(1))});
  Enqueue({.tokens = 3});
  scheduler_->Cancel(unwanted.id);
  EXPECT_EQ(unwanted.probe->answers(), 1);
  const absl::Status status = unwanted.probe->Await();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(ReasonOf(status), error_reason::kCancelled);
  EXPECT_EQ(Drops("cancelled"), 1);
  EXPECT_EQ(QueuedRequests(), 1);
  scheduler_->Cancel(unwanted.id);
  Stop();
  EXPECT_THAT(Batches(), ElementsAre(ElementsAre(1), ElementsAre(3)));
}

TEST_F(SchedulerExitTest, CancelDoesNothingOnceWorkHasLeftTheQueue) {
  Start({});
  const Queued running = Enqueue({});
  scheduler_->Cancel(running.id);
  EXPECT_EQ(running.probe->answers(), 0);
  device().Finish();
  EXPECT_TRUE(running.probe->Await().ok());
  scheduler_->Cancel(running.id);

  Enqueue({});
  const Queued expired = Enqueue({.deadline = In(absl::Seconds(1))});
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(expired.probe->Await().code(), absl::StatusCode::kDeadlineExceeded);
  scheduler_->Cancel(expired.id);
  scheduler_->Cancel(0);
  scheduler_->Cancel(~WorkId{0});
  EXPECT_EQ(Drops("cancelled"), 0);
}

TEST_F(SchedulerExitTest, CancellationMakesRoomAtOnce) {
  Start({.max_queued_requests = 1});
  Enqueue({});
  const Queued waiting = Enqueue({});
  EXPECT_EQ(ReasonOf(Refused({})), error_reason::kQueueFull);
  scheduler_->Cancel(waiting.id);
  Enqueue({});
}

// --- Drain -------------------------------------------------------------------

TEST_F(SchedulerExitTest, DrainRunsWhatIsQueued) {
  Start({.max_batch_requests = 2});
  for (int i = 0; i < 4; ++i) Enqueue({.tokens = i});
  bool finished = false;
  std::thread drain(
      [&] { finished = scheduler_->Drain(In(absl::Minutes(1))); });
  clock_.AwaitWaiter(In(absl::Minutes(1)));
  const absl::Status status = Refused({});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(status), error_reason::kDraining);
  EXPECT_EQ(Refusals("draining"), 1);
  while (device().Finish()) {
  }
  drain.join();
  EXPECT_TRUE(finished);
  EXPECT_THAT(Batches(),
              ElementsAre(ElementsAre(0), ElementsAre(1, 2), ElementsAre(3)));
  EXPECT_EQ(device().records()[1].flush_reason, FlushReason::kFull);
  EXPECT_EQ(device().records()[2].flush_reason, FlushReason::kDrain);
  for (const Probe& probe : probes_) EXPECT_TRUE(probe.Await().ok());
}

TEST_F(SchedulerExitTest, DrainAnswersTheRestWhenItsTimeIsUp) {
  Start({});
  const Queued running = Enqueue({.tokens = 1});
  const Queued queued = Enqueue({.tokens = 2});
  bool finished = true;
  const absl::Time deadline = In(absl::Seconds(30));
  std::thread drain([&] { finished = scheduler_->Drain(deadline); });
  clock_.AwaitWaiter(deadline);
  clock_.Advance(absl::Seconds(30));
  drain.join();
  EXPECT_FALSE(finished);
  const absl::Status status = queued.probe->Await();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(status), error_reason::kDraining);
  EXPECT_EQ(Drops("draining"), 1);
  EXPECT_EQ(running.probe->answers(), 0);
  device().Finish();
  EXPECT_TRUE(running.probe->Await().ok());
  EXPECT_TRUE(scheduler_->Drain(absl::InfinitePast()));
  EXPECT_THAT(Batches(), ElementsAre(ElementsAre(1)));
}

TEST_F(SchedulerExitTest, DrainOfAnIdleSchedulerEndsAtOnce) {
  Start({});
  EXPECT_TRUE(scheduler_->Drain(absl::InfinitePast()));
  EXPECT_TRUE(scheduler_->Drain(absl::InfiniteFuture()));
  EXPECT_EQ(ReasonOf(Refused({})), error_reason::kDraining);
}

TEST_F(SchedulerExitTest, DrainRunsWhatTheDelayHoldsBack) {
  Start({.max_queue_delay = absl::Hours(1)});
  const Queued held = Enqueue({.tokens = 7});
  bool finished = false;
  std::thread drain(
      [&] { finished = scheduler_->Drain(absl::InfiniteFuture()); });
  device().AwaitInFlight(1);
  device().Finish();
  drain.join();
  EXPECT_TRUE(finished);
  EXPECT_TRUE(held.probe->Await().ok());
  EXPECT_EQ(device().records()[0].flush_reason, FlushReason::kDrain);
}

TEST_F(SchedulerExitTest, DestructionAnswersTheQueueAndWaitsForDevices) {
  Start({});
  const Queued running = Enqueue({.tokens = 1});
  const Queued queued = Enqueue({.tokens = 2});
  std::thread destroyer([this] { scheduler_.reset(); });
  EXPECT_EQ(queued.probe->Await().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(running.probe->answers(), 0);
  device().Finish();
  destroyer.join();
  EXPECT_TRUE(running.probe->Await().ok());
  EXPECT_THAT(Batches(), ElementsAre(ElementsAre(1)));
}

// --- Failed devices ----------------------------------------------------------

TEST_F(SchedulerExitTest, AFailedDeviceGetsNoMoreWork) {
  Start({}, /*device_count=*/2);
  Enqueue({.tokens = 1});
  Enqueue({.tokens = 2});
  const Queued third = Enqueue({.tokens = 3});
  const Queued fourth = Enqueue({.config = 2, .tokens = 4});
  device(0).SetHealth(absl::InternalError("an illegal memory access"));
  device(0).Finish(absl::UnavailableError("an illegal memory access"));
  EXPECT_THAT(Batches(0), ElementsAre(ElementsAre(1)));
  device(1).Finish();
  device(1).Finish();
  EXPECT_THAT(Batches(1),
              ElementsAre(ElementsAre(2), ElementsAre(3), ElementsAre(4)));
  device(1).Finish();
  EXPECT_TRUE(third.probe->Await().ok());
  EXPECT_TRUE(fourth.probe->Await().ok());
  Enqueue({.tokens = 5});
  EXPECT_THAT(Batches(0), SizeIs(1));
}

TEST_F(SchedulerExitTest, WhenAllDevicesFailTheQueueIsAnswered) {
  Start({}, /*device_count=*/2);
  Enqueue({});
  Enqueue({});
  const Queued stranded = Enqueue({});
  device(0).SetHealth(absl::InternalError("fell off the bus"));
  device(1).SetHealth(absl::InternalError("an illegal memory access"));
  device(0).Finish(absl::UnavailableError("fell off the bus"));
  EXPECT_EQ(stranded.probe->answers(), 1);
  const absl::Status status = stranded.probe->Await();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(status), error_reason::kDeviceFailed);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("puppet:1: an illegal memory access"));
  EXPECT_EQ(Drops("device_failed"), 1);

  const absl::Status refusal = Refused({});
  EXPECT_EQ(refusal.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(refusal), error_reason::kDeviceFailed);
  EXPECT_EQ(Refusals("device_failed"), 1);
  EXPECT_EQ(scheduler_->RetryDelay(), absl::Seconds(5));
}

TEST_F(SchedulerExitTest, AFailureNobodyReportedIsNoticedByTheNextRequest) {
  Start({});
  Enqueue({});
  const Queued stranded = Enqueue({});
  device().SetHealth(absl::InternalError("hangs"));
  EXPECT_EQ(stranded.probe->answers(), 0);
  EXPECT_EQ(ReasonOf(Refused({})), error_reason::kDeviceFailed);
  EXPECT_EQ(stranded.probe->Await().code(), absl::StatusCode::kUnavailable);
}

// --- Callbacks ---------------------------------------------------------------

TEST_F(SchedulerExitTest, CallbacksMayUseTheScheduler) {
  Start({.max_batch_requests = 1});
  const auto use = [this] {
    scheduler_->RetryDelay();
    scheduler_->Cancel(1);
    Enqueue({});
  };
  Enqueue({}, use);
  const Queued cancelled = Enqueue({}, use);
  const Queued expired = Enqueue({.deadline = In(absl::Seconds(1))}, use);
  scheduler_->Cancel(cancelled.id);
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(expired.probe->Await().code(), absl::StatusCode::kDeadlineExceeded);
  clock_.AwaitWaiter(absl::InfiniteFuture());
  Stop();
  EXPECT_THAT(probes_, SizeIs(6));
}

TEST_F(SchedulerExitTest, ACallbackThatThrowsHarmsNobodyElse) {
  Start({});
  Enqueue({});
  const absl::Time deadline = In(absl::Seconds(1));
  const auto poison = [] { throw std::runtime_error("poison"); };
  Enqueue({.deadline = deadline}, poison);
  const Queued second = Enqueue({.deadline = deadline});
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(second.probe->Await().code(), absl::StatusCode::kDeadlineExceeded);

  const Queued cancelled = Enqueue({}, poison);
  scheduler_->Cancel(cancelled.id);
  // The timer's thread is still there.
  const Queued third = Enqueue({.deadline = In(absl::Seconds(1))});
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(third.probe->Await().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(SchedulerExitTest, ASlowCallbackBlocksNeitherQueueNorDevice) {
  Start({});
  Enqueue({.tokens = 1});
  absl::Notification entered, leave;
  const Queued slow =
      Enqueue({.tokens = 2, .deadline = In(absl::Seconds(1))}, [&] {
        entered.Notify();
        leave.WaitForNotification();
      });
  clock_.Advance(absl::Seconds(1));
  entered.WaitForNotification();  // the timer's thread hangs in it
  const Queued next = Enqueue({.tokens = 3});
  const Queued cancelled = Enqueue({.tokens = 4});
  scheduler_->Cancel(cancelled.id);
  device().Finish();
  device().Finish();
  EXPECT_TRUE(next.probe->Await().ok());
  EXPECT_EQ(cancelled.probe->Await().code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(scheduler_->Drain(absl::InfinitePast()));  // one is under way
  leave.Notify();
  EXPECT_EQ(slow.probe->Await().code(), absl::StatusCode::kDeadlineExceeded);
  Stop();  // before the notifications go
}

}  // namespace
}  // namespace attention
