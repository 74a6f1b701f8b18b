#include "server/engine/slot_threads.h"

#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace attention {
namespace {

std::unique_ptr<Batch> MakeBatch(bool is_short) {
  auto batch = std::make_unique<Batch>();
  batch->is_short = is_short;
  return batch;
}

TEST(SlotThreadsTest, OnlyShortBatchesRunOnTheCaller) {
  std::thread::id ran_on;
  SlotThreads threads(2, [&](int, std::unique_ptr<Batch>, auto free_slot) {
    ran_on = std::this_thread::get_id();
    free_slot();
  });
  bool slot_freed = false;
  threads.Run(MakeBatch(/*is_short=*/true), [&] { slot_freed = true; });
  EXPECT_TRUE(slot_freed);
  EXPECT_EQ(ran_on, std::this_thread::get_id());

  absl::Notification freed;
  threads.Run(MakeBatch(/*is_short=*/false), [&] { freed.Notify(); });
  freed.WaitForNotification();
  EXPECT_NE(ran_on, std::this_thread::get_id());
}

TEST(SlotThreadsTest, AShortBatchWaitsForASlotLikeAnyOther) {
  absl::Notification started, go_on, freed;
  std::thread::id ran_short_on;
  SlotThreads threads(
      1, [&](int slot, std::unique_ptr<Batch> batch, auto free_slot) {
        EXPECT_EQ(slot, 0);
        if (batch->is_short) {
          ran_short_on = std::this_thread::get_id();
          return free_slot();
        }
        started.Notify();
        go_on.WaitForNotification();
        free_slot();
      });
  threads.Run(MakeBatch(/*is_short=*/false), [] {});
  started.WaitForNotification();
  threads.Run(MakeBatch(/*is_short=*/true), [&] { freed.Notify(); });
  EXPECT_FALSE(freed.HasBeenNotified());
  go_on.Notify();
  freed.WaitForNotification();
  EXPECT_NE(ran_short_on, std::this_thread::get_id());
}

TEST(SlotThreadsTest, TheSlotIsFreeWhenItIsSaidToBe) {
  // What a scheduler does: the next batch comes from within slot_free.
  int runs = 0;
  absl::Notification freed;
  SlotThreads threads(1, [&](int, std::unique_ptr<Batch>, auto free_slot) {
    ++runs;
    free_slot();
  });
  threads.Run(MakeBatch(/*is_short=*/true), [&] {
    threads.Run(MakeBatch(/*is_short=*/true), [&] { freed.Notify(); });
    EXPECT_TRUE(freed.HasBeenNotified());
  });
  EXPECT_EQ(runs, 2);
}

TEST(SlotThreadsTest, AnotherBatchTakesASlotThatIsFreeBeforeTheFirstIsDone) {
  absl::Notification second_ran, first_gone;
  SlotThreads threads(
      1, [&](int slot, std::unique_ptr<Batch> batch, auto free_slot) {
        EXPECT_EQ(slot, 0);
        free_slot();
        if (batch->is_short) {
          second_ran.Notify();
        } else {
          second_ran.WaitForNotification();
        }
      });
  // What a scheduler learns from it: the answers have been given.
  auto gone = absl::MakeCleanup([&] {
    EXPECT_TRUE(second_ran.HasBeenNotified());
    first_gone.Notify();
  });
  threads.Run(MakeBatch(/*is_short=*/false), [&, gone = std::move(gone)] {
    threads.Run(MakeBatch(/*is_short=*/true), [] {});
  });
  first_gone.WaitForNotification();
}

TEST(SlotThreadsTest, ASlotHasOneBatchAtATime) {
  constexpr int kSlots = 3, kCallers = 6, kBatches = 200;
  std::vector<int> runs(kSlots);  // unguarded: a race shows in TSAN
  absl::BlockingCounter freed(kCallers * kBatches);
  std::vector<std::thread> callers;
  {
    SlotThreads threads(kSlots,
                        [&](int slot, std::unique_ptr<Batch>, auto free_slot) {
                          ++runs[slot];
                          free_slot();
                        });
    for (int i = 0; i < kCallers; ++i) {
      callers.emplace_back([&threads, &freed, i] {
        for (int j = 0; j < kBatches; ++j) {
          threads.Run(MakeBatch((i + j) % 2 == 0),
                      [&freed] { freed.DecrementCount(); });
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
  }
  freed.Wait();
  EXPECT_EQ(runs[0] + runs[1] + runs[2], kCallers * kBatches);
}

}  // namespace
}  // namespace attention
