#include "event_loop/poll_limit.h"

#include "gtest/gtest.h"

namespace attention {
namespace {

constexpr absl::Duration kBase = absl::Microseconds(100);

TEST(PollLimitTest, IsLongerWhileEventsComeSoon) {
  PollLimit limit(kBase);
  EXPECT_EQ(limit.Get(), kBase);
  limit.Note(absl::Microseconds(300));
  const absl::Duration longer = limit.Get();
  EXPECT_GT(longer, absl::Microseconds(300));
  limit.Note(longer);
  EXPECT_EQ(limit.Get(), longer);
}

TEST(PollLimitTest, IsShortAgainAfterALongWait) {
  PollLimit limit(kBase);
  limit.Note(absl::Microseconds(1));
  const absl::Duration longer = limit.Get();
  limit.Note(longer + absl::Nanoseconds(1));
  EXPECT_EQ(limit.Get(), kBase);
}

TEST(PollLimitTest, NothingMakesAPollOfZeroLonger) {
  PollLimit limit(absl::ZeroDuration());
  limit.Note(absl::ZeroDuration());
  EXPECT_EQ(limit.Get(), absl::ZeroDuration());
}

}  // namespace
}  // namespace attention
