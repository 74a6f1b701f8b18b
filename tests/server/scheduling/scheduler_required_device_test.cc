// Works whose tensors lie in the memory of one device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/scheduling/scheduler_fixture.h"

namespace attention {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RequiredDeviceTest : public SchedulerFixture {
 protected:
  // Keeps every slot of every device busy, with works of a tenant of its own.
  void Occupy() {
    for (const auto& device : devices_) {
      for (int i = 0; i < device->slot_count(); ++i) {
        Enqueue({.config = 9, .tokens = 0, .tenant = "occupant"});
      }
    }
  }
};

TEST_F(RequiredDeviceTest, RunsWhereItMust) {
  Start({}, /*device_count=*/3);
  Enqueue({.tokens = 12, .required_device = 2});
  Enqueue({.tokens = 11, .required_device = 1});
  EXPECT_THAT(Batches(0), IsEmpty());
  EXPECT_THAT(Batches(1), ElementsAre(ElementsAre(11)));
  EXPECT_THAT(Batches(2), ElementsAre(ElementsAre(12)));
}

TEST_F(RequiredDeviceTest, WaitsForItsDeviceWhileOthersAreFree) {
  Start({}, /*device_count=*/2);
  Enqueue({.tokens = 1, .required_device = 1});
  const Queued waiting = Enqueue({.tokens = 2, .required_device = 1});
  EXPECT_EQ(waiting.probe->answers(), 0);
  EXPECT_THAT(Batches(0), IsEmpty());
  // What comes later is not held up by it.
  Enqueue({.tokens = 3});
  EXPECT_THAT(Batches(0), ElementsAre(ElementsAre(3)));
  device(0).Finish();
  EXPECT_EQ(waiting.probe->answers(), 0);
  device(1).Finish();
  EXPECT_THAT(Batches(1), ElementsAre(ElementsAre(1), ElementsAre(2)));
}

TEST_F(RequiredDeviceTest, SharesBatchesWithItsOwnKindOnly) {
  Start({}, /*device_count=*/2);
  Occupy();
  Enqueue({.tokens = 1, .required_device = 0});
  Enqueue({.tokens = 2});
  Enqueue({.tokens = 3, .required_device = 1});
  Enqueue({.tokens = 4, .required_device = 0});
  Enqueue({.tokens = 5});
  device(1).Finish();
  device(1).Finish();
  device(0).Finish();
  EXPECT_THAT(Batches(0), ElementsAre(ElementsAre(0), ElementsAre(1, 4)));
  EXPECT_THAT(Batches(1),
              ElementsAre(ElementsAre(0), ElementsAre(2, 5), ElementsAre(3)));
}

TEST_F(RequiredDeviceTest, TheOnlyDeviceIsNoRequirement) {
  Start({});
  Occupy();
  Enqueue({.tokens = 1, .required_device = 0});
  Enqueue({.tokens = 2});
  device().Finish();
  EXPECT_THAT(Batches(), ElementsAre(ElementsAre(0), ElementsAre(1, 2)));
}

// One that requires a device and one that does not share what both can have.
TEST_F(RequiredDeviceTest, TenantsShareTheDeviceByTime) {
  Start({.max_batch_requests = 1});
  Occupy();
  for (int i = 0; i < 4; ++i) {
    Enqueue({.tokens = 1, .tenant = "a", .required_device = 0});
    Enqueue({.tokens = 2, .tenant = "b"});
  }
  while (device().Finish()) {
  }
  EXPECT_THAT(Batches(),
              ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2),
                          ElementsAre(1), ElementsAre(2), ElementsAre(1),
                          ElementsAre(2), ElementsAre(1), ElementsAre(2)));
}

TEST_F(RequiredDeviceTest, DelayHoldsItBackForItsDeviceOnly) {
  Start({.max_batch_requests = 2, .max_queue_delay = absl::Seconds(5)},
        /*device_count=*/2);
  Enqueue({.tokens = 1, .required_device = 1});
  clock_.AwaitWaiter(clock_.Now() + absl::Seconds(5));
  Enqueue({.tokens = 2, .required_device = 1});
  EXPECT_THAT(Batches(1), ElementsAre(ElementsAre(1, 2)));
  const Queued late = Enqueue({.tokens = 3, .required_device = 0});
  clock_.AwaitWaiter(clock_.Now() + absl::Seconds(5));
  clock_.Advance(absl::Seconds(5));
  device(0).AwaitInFlight(1);
  EXPECT_EQ(late.probe->answers(), 0);
  EXPECT_THAT(Batches(0), ElementsAre(ElementsAre(3)));
}

TEST_F(RequiredDeviceTest, UnknownDevicesAreRefused) {
  Start({}, /*device_count=*/2);
  for (int device : {2, 100, -2}) {
    const absl::Status status = Refused({.required_device = device});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ReasonOf(status), error_reason::kInvalidRequest);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("required_device must be below 2; got ",
                                       device)));
  }
  EXPECT_EQ(Refusals("no_device"), 3);
}

TEST_F(RequiredDeviceTest, AFailedDeviceEndsWhatRequiresIt) {
  Start({}, /*device_count=*/3);
  Occupy();
  const Queued lost = Enqueue({.tokens = 1, .required_device = 1});
  const Queued also_lost =
      Enqueue({.config = 2, .tokens = 2, .tenant = "b", .required_device = 1});
  const Queued other = Enqueue({.tokens = 3, .required_device = 2});
  const Queued any = Enqueue({.tokens = 4});
  device(1).SetHealth(absl::UnavailableError("an illegal access"));
  device(1).Finish(absl::UnavailableError("an illegal access"));
  for (const Queued& queued : {lost, also_lost}) {
    ASSERT_EQ(queued.probe->answers(), 1);
    const absl::Status status = queued.probe->Await();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(ReasonOf(status), error_reason::kDeviceFailed);
    EXPECT_THAT(std::string(status.message()),
                ::testing::AllOf(HasSubstr("puppet:1"),
                                 HasSubstr("an illegal access")));
  }
  EXPECT_EQ(Drops("device_failed"), 2);
  const absl::Status refused = Refused({.required_device = 1});
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(refused), error_reason::kDeviceFailed);
  EXPECT_EQ(Refusals("device_failed"), 1);
  device(0).Finish();
  device(2).Finish();
  EXPECT_THAT(Batches(0), ElementsAre(ElementsAre(0), ElementsAre(4)));
  EXPECT_THAT(Batches(2), ElementsAre(ElementsAre(0), ElementsAre(3)));
  EXPECT_EQ(other.probe->answers() + any.probe->answers(), 0);
}

// What waits for one device does not fill the queue, counted in time, of those
// that need not wait for it.
TEST_F(RequiredDeviceTest, QueueTimeIsThatOfTheDeviceRequired) {
  const absl::Duration bound = absl::Milliseconds(1);
  Start({.max_batch_requests = 1, .max_queued_time = bound},
        /*device_count=*/2);
  Occupy();
  absl::Status refused;
  while (refused.ok()) {
    Probe& probe = probes_.emplace_back();
    auto work = probe.Attach(MakeWork({.required_device = 1}));
    refused = scheduler_->Enqueue(work).status();
    if (!refused.ok()) probes_.pop_back();
  }
  EXPECT_EQ(ReasonOf(refused), error_reason::kQueueFull);
  EXPECT_GE(reader_.Sum("attention_queue_predicted_seconds"),
            absl::ToDoubleSeconds(bound));
  Enqueue({.tokens = 1, .required_device = 0});
  Enqueue({.tokens = 2});
}

// Only the required device's speed counts for what cannot be done in time.
TEST_F(RequiredDeviceTest, DeadlinesAreJudgedByTheRequiredDevice) {
  Start({.max_batch_requests = 1}, /*device_count=*/2);
  // Device 0 is known to be slow, nothing is known of device 1.
  for (int i = 0; i < 32; ++i) {
    Enqueue({.required_device = 0});
    clock_.Advance(absl::Seconds(1));
    device(0).Finish();
  }
  const absl::Time soon = clock_.Now() + absl::Milliseconds(1);
  const absl::Status status = Refused({.deadline = soon, .required_device = 0});
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  Enqueue({.deadline = soon, .required_device = 1});
  device(1).Finish();
  Enqueue({.deadline = soon});
}

}  // namespace
}  // namespace attention
