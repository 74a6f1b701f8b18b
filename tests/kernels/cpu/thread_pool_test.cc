#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <set>
#include <thread>
#include <vector>

#include "absl/synchronization/barrier.h"

namespace attention::cpu {
namespace {

class ThreadPoolTest : public testing::TestWithParam<int> {};

TEST_P(ThreadPoolTest, RunsEveryIterationOnce) {
  ThreadPool pool(GetParam());
  ASSERT_EQ(pool.thread_count(), GetParam());
  for (int64_t count : {0, 1, 2, 3, 7, 1000}) {
    // Not atomic: distinct iterations touch distinct elements, and the loop's
    // end makes them visible here.
    std::vector<int> runs(count, 0);
    pool.ParallelFor(count, [&](int64_t i, int) { ++runs[i]; });
    EXPECT_EQ(runs, std::vector<int>(count, 1));
  }
}

TEST_P(ThreadPoolTest, ThreadIndicesAreInRangeAndExclusive) {
  ThreadPool pool(GetParam());
  for (int64_t count : {1, 2, 500}) {
    const int64_t indices = std::min<int64_t>(count, GetParam());
    std::vector<std::atomic<int>> users(indices);
    std::atomic<int64_t> violations = 0;
    pool.ParallelFor(count, [&](int64_t, int thread) {
      if (thread < 0 || thread >= indices || users[thread].fetch_add(1) != 0) {
        ++violations;
        return;
      }
      std::this_thread::yield();
      users[thread].fetch_sub(1);
    });
    EXPECT_EQ(violations, 0) << count;
  }
}

TEST_P(ThreadPoolTest, HandsOutIterationsInOrder) {
  ThreadPool pool(GetParam());
  std::vector<std::vector<int64_t>> seen(GetParam());
  pool.ParallelFor(300,
                   [&](int64_t i, int thread) { seen[thread].push_back(i); });
  int64_t total = 0;
  for (const std::vector<int64_t>& iterations : seen) {
    EXPECT_TRUE(std::is_sorted(iterations.begin(), iterations.end()));
    total += static_cast<int64_t>(iterations.size());
  }
  EXPECT_EQ(total, 300);
}

TEST_P(ThreadPoolTest, AllThreadsTakePart) {
  ThreadPool pool(GetParam());
  // No iteration ends before all have begun, so each needs a thread.
  absl::Barrier* const barrier = new absl::Barrier(GetParam());
  std::vector<std::thread::id> ids(GetParam());
  pool.ParallelFor(GetParam(), [&](int64_t i, int) {
    ids[i] = std::this_thread::get_id();
    if (barrier->Block()) delete barrier;
  });
  EXPECT_EQ(std::set<std::thread::id>(ids.begin(), ids.end()).size(),
            static_cast<size_t>(GetParam()));
}

TEST_P(ThreadPoolTest, ConcurrentLoopsTakeTurns) {
  ThreadPool pool(GetParam());
  constexpr int kCallers = 4;
  constexpr int kLoops = 50;
  std::vector<int64_t> sums(kCallers, 0);
  std::atomic<int> running = 0;
  std::atomic<int> overlaps = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&, caller] {
      for (int loop = 0; loop < kLoops; ++loop) {
        std::vector<int64_t> parts(GetParam(), 0);
        std::atomic<bool> first = true;
        std::atomic<int> left = 20;
        pool.ParallelFor(20, [&](int64_t i, int thread) {
          if (first.exchange(false) && running.fetch_add(1) != 0) ++overlaps;
          parts[thread] += i;
          if (left.fetch_sub(1) == 1) running.fetch_sub(1);
        });
        for (int64_t part : parts) sums[caller] += part;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(overlaps, 0);
  EXPECT_EQ(sums, std::vector<int64_t>(kCallers, kLoops * 190));
}

TEST_P(ThreadPoolTest, IsDestroyedWithoutHavingRun) {
  for (int i = 0; i < 20; ++i) ThreadPool pool(GetParam());
}

INSTANTIATE_TEST_SUITE_P(ThreadCounts, ThreadPoolTest,
                         testing::Values(1, 2, 5));

TEST(ThreadPoolCountTest, AtLeastTheCallerRuns) {
  ThreadPool pool(0);
  EXPECT_EQ(pool.thread_count(), 1);
  int runs = 0;
  pool.ParallelFor(3, [&](int64_t, int thread) { runs += thread == 0; });
  EXPECT_EQ(runs, 3);
}

}  // namespace
}  // namespace attention::cpu
