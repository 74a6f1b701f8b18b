#include "event_loop/event_loop.h"

#include <atomic>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/event_loop/alarm.h"

namespace attention {
namespace {

class EventLoopTest : public testing::Test {
 protected:
  EventLoopTest() {
    loop_ = std::make_unique<EventLoop>(
        std::make_unique<grpc::CompletionQueue>(),
        EventLoop::Options{.thread_count = 6,
                           .poll_time = absl::Microseconds(50)});
  }

  Alarm& Make(std::function<void()> handle) {
    alarms_.push_back(std::make_unique<Alarm>(*loop_, std::move(handle)));
    return *alarms_.back();
  }

  // Declared first: the loop ends with the last use of them.
  std::vector<std::unique_ptr<Alarm>> alarms_;
  std::unique_ptr<EventLoop> loop_;
};

TEST_F(EventLoopTest, HandlesEveryEventBeforeItEnds) {
  constexpr int kCount = 1000;
  std::atomic<int> handled = 0;
  for (int i = 0; i < kCount; ++i) {
    Make([&handled] { handled.fetch_add(1); }).Raise();
  }
  loop_.reset();
  EXPECT_EQ(handled.load(), kCount);
}

TEST_F(EventLoopTest, TakesOneEventAfterTheOther) {
  absl::Notification first;
  absl::Notification second;
  Make([&first] { first.Notify(); }).Raise();
  first.WaitForNotification();
  Make([&second] { second.Notify(); }).Raise();
  second.WaitForNotification();
  loop_.reset();  // before what its threads may still use
}

TEST_F(EventLoopTest, EventsThatComeTogetherAreHandledAtTheSameTime) {
  absl::Notification other_handled;
  absl::Notification done;
  Alarm& waiting = Make([&] {
    other_handled.WaitForNotification();
    done.Notify();
  });
  Alarm& other = Make([&] { other_handled.Notify(); });
  Make([&] {
    waiting.Raise();
    other.Raise();
  }).Raise();
  done.WaitForNotification();
  loop_.reset();  // before what its threads may still use
}

TEST_F(EventLoopTest, OthersPollDuringLongEventsOnceOneHadCompany) {
  absl::Notification handled_meanwhile;
  absl::Notification done;
  Alarm& meanwhile = Make([&] { handled_meanwhile.Notify(); });
  Alarm& second = Make([&] {
    EventLoop::NoteArrival();
    EventLoop::LetOthersPoll();
    meanwhile.Raise();
    handled_meanwhile.WaitForNotification();
    done.Notify();
  });
  Make([&] {
    EventLoop::NoteArrival();
    EventLoop::LetOthersPoll();
    second.Raise();
  }).Raise();
  done.WaitForNotification();
  loop_.reset();  // before what its threads may still use
}

TEST_F(EventLoopTest, ManyCallsHaveSeveralThreadsThatWait) {
  // One after the other, so that no thread takes two of them.
  constexpr int kThreads = 3;
  for (int i = 0; i < 2 * kThreads; ++i) loop_->Begin();
  absl::Notification done;
  absl::Notification last_handled;
  Alarm& last = Make([&] { last_handled.Notify(); });
  Alarm& second = Make([&] {
    last.Raise();
    last_handled.WaitForNotification();
  });
  Make([&] {
    second.Raise();
    last_handled.WaitForNotification();
    done.Notify();
  }).Raise();
  done.WaitForNotification();

  // And again one, which handles all that is left.
  for (int i = 0; i < 2 * kThreads; ++i) loop_->End();
  absl::Notification handled;
  Make([&] { handled.Notify(); }).Raise();
  handled.WaitForNotification();
  loop_.reset();  // before what its threads may still use
}

TEST_F(EventLoopTest, WhoReadsForManyIsToldSo) {
  constexpr int kMany = 100;
  EXPECT_TRUE(EventLoop::HasFewCalls());  // of another thread
  for (int i = 0; i < kMany; ++i) loop_->Begin();
  std::atomic<bool> had_few = true;
  absl::Notification of_many;
  Make([&] {
    had_few.store(EventLoop::HasFewCalls());
    of_many.Notify();
  }).Raise();
  of_many.WaitForNotification();
  EXPECT_FALSE(had_few.load());
  EXPECT_TRUE(EventLoop::HasFewCalls());

  for (int i = 0; i < kMany; ++i) loop_->End();
  absl::Notification of_few;
  Make([&] {
    had_few.store(EventLoop::HasFewCalls());
    of_few.Notify();
  }).Raise();
  of_few.WaitForNotification();
  EXPECT_TRUE(had_few.load());
  loop_.reset();  // before what its threads may still use
}

}  // namespace
}  // namespace attention
