#include "server/scheduling/clock.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/support/fake_clock.h"

namespace attention {
namespace {

// Waits until `*flag` or the deadline; returns whether the flag was set.
bool WaitForFlag(Clock& clock, absl::CondVar& condition, absl::Mutex& mutex,
                 const bool& flag, absl::Time deadline) {
  absl::MutexLock lock(&mutex);
  while (!flag && clock.Now() < deadline) {
    clock.WaitUntil(condition, mutex, deadline);
  }
  return flag;
}

TEST(RealClockTest, RunsForward) {
  Clock& clock = Clock::Real();
  const absl::Time before = absl::Now();
  const absl::Time now = clock.Now();
  EXPECT_LE(before, now);
  EXPECT_LE(now, absl::Now());
}

TEST(RealClockTest, APassedDeadlineDoesNotWait) {
  absl::Mutex mutex;
  absl::CondVar condition;
  EXPECT_FALSE(WaitForFlag(Clock::Real(), condition, mutex, false,
                           absl::Now() - absl::Seconds(1)));
  absl::MutexLock lock(&mutex);
  Clock::Real().WaitUntil(condition, mutex, absl::InfinitePast());
}

TEST(RealClockTest, ASignalEndsTheWait) {
  absl::Mutex mutex;
  absl::CondVar condition;
  bool flag = false;
  std::thread signaller([&] {
    absl::MutexLock lock(&mutex);
    flag = true;
    condition.Signal();
  });
  EXPECT_TRUE(WaitForFlag(Clock::Real(), condition, mutex, flag,
                          absl::InfiniteFuture()));
  signaller.join();
}

TEST(FakeClockTest, StandsStillUntilMoved) {
  FakeClock clock;
  const absl::Time start = clock.Now();
  EXPECT_EQ(clock.Now(), start);
  clock.Advance(absl::Milliseconds(3));
  EXPECT_EQ(clock.Now(), start + absl::Milliseconds(3));
}

TEST(FakeClockTest, AdvanceEndsTheWaitsThatAreDue) {
  FakeClock clock;
  absl::Mutex mutex;
  absl::CondVar condition;
  const bool flag = false;
  const absl::Time early = clock.Now() + absl::Seconds(1);
  const absl::Time late = clock.Now() + absl::Seconds(2);
  std::thread first([&] {
    EXPECT_FALSE(WaitForFlag(clock, condition, mutex, flag, early));
    EXPECT_EQ(clock.Now(), early);
  });
  std::thread second(
      [&] { EXPECT_FALSE(WaitForFlag(clock, condition, mutex, flag, late)); });
  clock.AwaitWaiter(early);
  clock.AwaitWaiter(late);
  clock.Advance(absl::Seconds(1));
  first.join();
  clock.AwaitWaiter(late);  // woken with the first, it waits again
  clock.Advance(absl::Seconds(1));
  second.join();
}

}  // namespace
}  // namespace attention
