#include "server/engine/copy_threads.h"

#include <thread>
#include <vector>

#include "absl/synchronization/barrier.h"
#include "gtest/gtest.h"

namespace attention {
namespace {

class CopyThreadsTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Helpers, CopyThreadsTest, testing::Values(0, 1, 4));

TEST_P(CopyThreadsTest, CopiesEveryPieceOnceAndReportsOnlyWhatIsThere) {
  CopyThreads threads(GetParam());
  EXPECT_EQ(threads.helper_count(), GetParam());
  for (int count : {0, 1, 2, 7, 500}) {
    std::vector<int> copies(count);  // unguarded: a race shows in TSAN
    int reported = 0;
    const std::thread::id caller = std::this_thread::get_id();
    threads.Run(
        count, [&](int piece) { ++copies[piece]; },
        [&](int finished) {
          EXPECT_EQ(std::this_thread::get_id(), caller);
          EXPECT_GT(finished, reported);
          for (; reported < finished; ++reported) {
            EXPECT_EQ(copies[reported], 1) << reported;
          }
        });
    EXPECT_EQ(reported, count);
  }
}

TEST_P(CopyThreadsTest, RunsAtTheSameTimeDoNotMix) {
  CopyThreads threads(GetParam());
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&threads, caller] {
      for (int run = 0; run < 20; ++run) {
        const int count = 1 + caller * 17 + run;
        std::vector<int> copies(count);
        int last = 0;
        threads.Run(
            count, [&](int piece) { copies[piece] += caller + 1; },
            [&](int finished) { last = finished; });
        EXPECT_EQ(last, count);
        for (int copy : copies) EXPECT_EQ(copy, caller + 1);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST(CopyThreadsHelpTest, AllThreadsCopyAtTheSameTime) {
  constexpr int kHelpers = 3;
  CopyThreads threads(kHelpers);
  // No piece comes to an end before every thread has begun one.
  absl::Barrier begun(kHelpers + 1);
  int reported = 0;
  threads.Run(
      kHelpers + 1, [&](int) { begun.Block(); },
      [&](int finished) { reported = finished; });
  EXPECT_EQ(reported, kHelpers + 1);
}

}  // namespace
}  // namespace attention
