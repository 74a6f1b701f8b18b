#include "client/cpp/retry.h"

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace attention {
namespace {

constexpr auto kUnavailable = absl::StatusCode::kUnavailable;
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
const RetryPolicy kPolicy{.max_attempts = 4,
                          .initial_backoff = absl::Milliseconds(100),
                          .max_backoff = absl::Milliseconds(350)};

TEST(RetryDelayTest, BacksOffExponentiallyUpToACap) {
  EXPECT_EQ(RetryDelay(kPolicy, 1, kUnavailable, std::nullopt, 0.5),
            absl::Milliseconds(100));
  EXPECT_EQ(RetryDelay(kPolicy, 2, kUnavailable, std::nullopt, 0.5),
            absl::Milliseconds(200));
  EXPECT_EQ(RetryDelay(kPolicy, 3, kUnavailable, std::nullopt, 0.5),
            absl::Milliseconds(350));
}

TEST(RetryDelayTest, ManyAttemptsStayAtTheCap) {
  RetryPolicy policy = kPolicy;
  policy.max_attempts = 5000;
  EXPECT_EQ(RetryDelay(policy, 4000, kUnavailable, std::nullopt, 0.5),
            absl::Milliseconds(350));
}

TEST(RetryDelayTest, JitterIsAFifthEitherWay) {
  const auto low = RetryDelay(kPolicy, 1, kUnavailable, std::nullopt, 0.0);
  const auto high = RetryDelay(kPolicy, 1, kUnavailable, std::nullopt, 0.9999);
  ASSERT_TRUE(low.has_value() && high.has_value());
  EXPECT_NEAR(absl::ToDoubleMilliseconds(*low), 80, 0.1);
  EXPECT_NEAR(absl::ToDoubleMilliseconds(*high), 120, 0.1);
}

TEST(RetryDelayTest, StopsAfterTheLastAttempt) {
  EXPECT_TRUE(
      RetryDelay(kPolicy, 3, kUnavailable, std::nullopt, 0.5).has_value());
  EXPECT_EQ(RetryDelay(kPolicy, 4, kUnavailable, std::nullopt, 0.5),
            std::nullopt);
}

TEST(RetryDelayTest, ResourceExhaustedNeedsAPushback) {
  EXPECT_EQ(RetryDelay(kPolicy, 1, kExhausted, std::nullopt, 0.5),
            std::nullopt);
  const Pushback pushback{.retry = true, .delay = absl::Seconds(2)};
  EXPECT_EQ(RetryDelay(kPolicy, 1, kExhausted, pushback, 0.0),
            absl::Seconds(2));
}

TEST(RetryDelayTest, APushbackIsNeverCutShort) {
  const Pushback pushback{.retry = true, .delay = absl::Seconds(2)};
  for (const double random : {0.0, 0.3, 0.9999}) {
    const auto delay = RetryDelay(kPolicy, 1, kUnavailable, pushback, random);
    ASSERT_TRUE(delay.has_value());
    EXPECT_GE(*delay, absl::Seconds(2));
    EXPECT_LE(*delay, absl::Seconds(2.4));
  }
}

TEST(RetryDelayTest, ANegativePushbackForbidsRetries) {
  const Pushback pushback{.retry = false};
  EXPECT_EQ(RetryDelay(kPolicy, 1, kUnavailable, pushback, 0.5), std::nullopt);
  EXPECT_EQ(RetryDelay(kPolicy, 1, kExhausted, pushback, 0.5), std::nullopt);
}

TEST(RetryDelayTest, OtherCodesAreFinal) {
  const Pushback pushback{.retry = true, .delay = absl::Milliseconds(1)};
  for (int code = 1; code <= 16; ++code) {
    const auto status_code = static_cast<absl::StatusCode>(code);
    if (status_code == kUnavailable || status_code == kExhausted) continue;
    EXPECT_EQ(RetryDelay(kPolicy, 1, status_code, pushback, 0.5), std::nullopt)
        << code;
  }
}

TEST(ParsePushbackTest, ReadsMilliseconds) {
  EXPECT_TRUE(ParsePushback("0").retry);
  EXPECT_EQ(ParsePushback("0").delay, absl::ZeroDuration());
  EXPECT_EQ(ParsePushback("1500").delay, absl::Milliseconds(1500));
}

TEST(ParsePushbackTest, EverythingElseMeansNo) {
  for (const char* value : {"-1", "", "soon", "1.5", "99999999999", "10ms"}) {
    EXPECT_FALSE(ParsePushback(value).retry) << value;
  }
}

}  // namespace
}  // namespace attention
