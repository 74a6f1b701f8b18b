// What happens at the same time in a device, on every backend.
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/server/engine/engine_fixture.h"

namespace attention::test {
namespace {

class DeviceThreadsTest : public EngineTest {};
INSTANTIATE_FOR_ENGINES(DeviceThreadsTest);

// To send answers takes longer than to compute small works.
TEST_P(DeviceThreadsTest, ManyAnswersAreGivenByMoreThanOneThread) {
  if (GetParam() == EngineBackend::kCpu) {
    GTEST_SKIP() << "the kernels' threads would be in the way";
  }
  Requests requests = MakeRequests(
      std::vector<WorkSpec>(8, {.config = kSmallConfig, .lengths = {{3, 5}}}));
  auto batch = MakeBatch(requests);
  absl::Mutex mutex;
  int given_at_once = 0;
  bool were_two = false;
  for (auto& work : batch->works) {
    work->done = [&, done = std::move(work->done)](
                     absl::StatusOr<WorkResult> result) mutable {
      {
        absl::MutexLock lock(&mutex);
        were_two |= ++given_at_once > 1;
        mutex.AwaitWithTimeout(absl::Condition(&were_two), absl::Minutes(1));
        --given_at_once;
      }
      done(std::move(result));
    };
  }
  RunAndWait(device(), std::move(batch));
  EXPECT_TRUE(were_two);
  for (auto& request : requests) EXPECT_TRUE(request->AnsweredRight());
}

TEST_P(DeviceThreadsTest, RunReturnsBeforeTheAnswer) {
  ASSERT_GE(device().slot_count(), 2);
  absl::Notification returned;
  Requests requests =
      MakeRequests({{.config = kSmallConfig, .lengths = {{4, 4}}}});
  AttentionWork& work = requests[0]->work();
  bool in_time = false;
  work.done = [&, done = std::move(work.done)](
                  absl::StatusOr<WorkResult> result) mutable {
    in_time = returned.WaitForNotificationWithTimeout(absl::Minutes(1));
    done(std::move(result));
  };
  absl::Notification free;
  device().Run(MakeBatch(requests), [&free] { free.Notify(); });
  returned.Notify();
  free.WaitForNotification();
  EXPECT_TRUE(in_time);
}

TEST_P(DeviceThreadsTest, SlotsWorkAtTheSameTime) {
  // The first batch's answer is held back until the second's has arrived.
  Requests first =
      MakeRequests({{.config = kSmallConfig, .lengths = {{4, 4}}}});
  Requests second =
      MakeRequests({{.config = kSmallConfig, .lengths = {{4, 4}}}});
  AttentionWork& work = first[0]->work();
  bool overlapped = false;
  work.done = [&, done = std::move(work.done)](
                  absl::StatusOr<WorkResult> result) mutable {
    overlapped = second[0]->Wait().ok();
    done(std::move(result));
  };
  absl::BlockingCounter free(2);
  device().Run(MakeBatch(first), [&free] { free.DecrementCount(); });
  device().Run(MakeBatch(second), [&free] { free.DecrementCount(); });
  free.Wait();
  EXPECT_TRUE(overlapped);
}

TEST_P(DeviceThreadsTest, DestructorWaitsForBatchesInFlight) {
  std::vector<Requests> batches;
  int free_count = 0;
  for (int i = 0; i < 8; ++i) {
    batches.push_back(
        MakeRequests({{.config = kGroupedConfig, .lengths = {{50, 80}}},
                      {.config = kGroupedConfig, .lengths = {{9, 9}}}}));
  }
  absl::Mutex mutex;
  for (Requests& requests : batches) {
    device().Run(MakeBatch(requests), [&] {
      absl::MutexLock lock(&mutex);
      ++free_count;
    });
  }
  engine().DestroyDevice();
  absl::MutexLock lock(&mutex);
  EXPECT_EQ(free_count, 8);
  for (Requests& requests : batches) {
    for (const auto& request : requests) {
      ASSERT_TRUE(request->done());
      EXPECT_TRUE(request->AnsweredRight());
    }
  }
}

TEST_P(DeviceThreadsTest, ManyCallersAtOnce) {
  Start({.host_bytes = 3 << 20, .device_bytes = 3 << 20});
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      for (int i = 0; i < 6; ++i) {
        Requests requests =
            MakeRequests({{.config = kSmallConfig,
                           .lengths = {{10 + caller, 20}, {i, 7}},
                           .log_sum_exp = i % 2 == 0,
                           .fragment_bytes = static_cast<size_t>(i % 3) * 100},
                          {.config = kSmallConfig, .lengths = {{3, 3}}}});
        RunAndWait(device(), MakeBatch(requests));
        for (const auto& request : requests) {
          EXPECT_TRUE(request->AnsweredRight()) << caller << " " << i;
        }
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(engine().Metric("attention_batches_in_flight"), 0);
  EXPECT_EQ(engine().Metric("attention_batches_total"), 24);
}

}  // namespace
}  // namespace attention::test
