#include "event_loop/event_loops.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/event_loop/alarm.h"

namespace attention {
namespace {

class EventLoopsTest : public testing::Test {
 protected:
  static std::unique_ptr<EventLoops> MakeLoops(int count) {
    std::vector<std::unique_ptr<grpc::CompletionQueue>> queues(count);
    for (auto& queue : queues) {
      queue = std::make_unique<grpc::CompletionQueue>();
    }
    return std::make_unique<EventLoops>(std::move(queues),
                                        absl::Microseconds(50));
  }

  Alarm& Make(EventLoop& loop, std::function<void()> handle) {
    alarms_.push_back(std::make_unique<Alarm>(loop, std::move(handle)));
    return *alarms_.back();
  }

  std::vector<std::unique_ptr<Alarm>> alarms_;
};

TEST_F(EventLoopsTest, EachHandlesAllOfItsEvents) {
  constexpr int kCount = 3000;
  const auto loops = MakeLoops(3);
  ASSERT_EQ(loops->size(), 3u);
  EXPECT_EQ(&loops->at(4), &loops->at(1));
  std::atomic<int> handled = 0;
  absl::Notification all;
  for (int i = 0; i < kCount; ++i) {
    Make(loops->at(i), [&] {
      if (handled.fetch_add(1) == kCount - 1) all.Notify();
    }).Raise();
  }
  all.WaitForNotification();
}

// One that came with others and takes long, which is said beforehand, does not
// keep them waiting.
TEST_F(EventLoopsTest, WhatTakesLongPassesOnWhatCameWithIt) {
  const auto loops = MakeLoops(2);
  EventLoop& loop = loops->at(0);
  constexpr int kCount = 8;
  absl::Notification others_handled;
  absl::Notification done;
  std::atomic<int> left = kCount;
  std::vector<Alarm*> raised;
  raised.push_back(&Make(loop, [&] {
    EventLoop::LetOthersPoll();
    others_handled.WaitForNotification();
    done.Notify();
  }));
  for (int i = 0; i < kCount; ++i) {
    raised.push_back(&Make(loop, [&] {
      if (left.fetch_sub(1) == 1) others_handled.Notify();
    }));
  }
  Make(loop, [&] {
    EventLoop::LetOthersPoll();
    for (Alarm* alarm : raised) alarm->Raise();
  }).Raise();
  done.WaitForNotification();
}

TEST_F(EventLoopsTest, CallsOfAllLoopsCount) {
  const auto loops = MakeLoops(2);
  constexpr int kMany = 4;
  for (int i = 0; i < kMany; ++i) loops->at(1).Begin();
  std::atomic<bool> had_few = true;
  absl::Notification asked;
  Make(loops->at(0), [&] {
    had_few = EventLoop::HasFewCalls();
    asked.Notify();
  }).Raise();
  asked.WaitForNotification();
  EXPECT_FALSE(had_few);
  for (int i = 0; i < kMany; ++i) loops->at(1).End();
}

TEST(SharedEventLoopsTest, AreThoseOfEqualTimesAsLongAsTheyAreUsed) {
  const auto first = EventLoops::Shared(absl::Microseconds(7));
  EXPECT_EQ(EventLoops::Shared(absl::Microseconds(7)), first);
  EXPECT_NE(EventLoops::Shared(absl::Microseconds(8)), first);
}

TEST(DefaultEventLoopsTest, AreSeveralWhereSocketsAreSeparate) {
  unsetenv("GRPC_POLL_STRATEGY");
  EXPECT_EQ(EventLoops::DefaultCount(), 1);
  setenv("GRPC_POLL_STRATEGY", "epoll1", 1);
  EXPECT_EQ(EventLoops::DefaultCount(), 1);
  EventLoops::SeparateSockets();  // not against the environment
  EXPECT_STREQ(std::getenv("GRPC_POLL_STRATEGY"), "epoll1");
  unsetenv("GRPC_POLL_STRATEGY");
  EventLoops::SeparateSockets();
  const unsigned processors = std::thread::hardware_concurrency();
  if (processors >= 8) {
    EXPECT_STREQ(std::getenv("GRPC_POLL_STRATEGY"), "poll");
    EXPECT_EQ(EventLoops::DefaultCount(),
              static_cast<int>(std::min(processors / 4, 8u)));
  } else {
    EXPECT_EQ(std::getenv("GRPC_POLL_STRATEGY"), nullptr);
  }
  unsetenv("GRPC_POLL_STRATEGY");
}

}  // namespace
}  // namespace attention
