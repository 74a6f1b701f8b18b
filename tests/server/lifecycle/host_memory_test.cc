#include "server/lifecycle/host_memory.h"

#include <gtest/gtest.h>

namespace attention {
namespace {

class IdleDetectorTest : public ::testing::Test {
 protected:
  bool At(int seconds, int64_t started, int64_t finished) {
    return detector_.BecameIdle(absl::UnixEpoch() + absl::Seconds(seconds),
                                started, finished);
  }

  IdleDetector detector_{absl::Seconds(10)};
};

TEST_F(IdleDetectorTest, IsQuietBeforeTheFirstRequest) {
  EXPECT_FALSE(At(0, 0, 0));
  EXPECT_FALSE(At(1000, 0, 0));
}

TEST_F(IdleDetectorTest, ReportsOncePerIdlePeriod) {
  EXPECT_FALSE(At(0, 3, 3));
  EXPECT_FALSE(At(9, 3, 3));
  EXPECT_TRUE(At(10, 3, 3));
  EXPECT_FALSE(At(50, 3, 3));
  EXPECT_FALSE(At(60, 4, 4));
  EXPECT_TRUE(At(70, 4, 4));
}

TEST_F(IdleDetectorTest, IsNotIdleWhileRequestsAreInFlight) {
  EXPECT_FALSE(At(0, 3, 2));
  EXPECT_FALSE(At(100, 3, 2));
  EXPECT_FALSE(At(101, 3, 3));
  EXPECT_FALSE(At(110, 3, 3));
  EXPECT_TRUE(At(111, 3, 3));
}

TEST_F(IdleDetectorTest, StartsAnewWithEveryRequest) {
  EXPECT_FALSE(At(0, 1, 1));
  EXPECT_FALSE(At(9, 2, 2));
  EXPECT_FALSE(At(12, 2, 2));
  EXPECT_TRUE(At(19, 2, 2));
}

}  // namespace
}  // namespace attention
