#include "server/rpc/duration_proto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>

#include "server/engine/error_reason.h"

namespace attention {
namespace {

absl::StatusOr<absl::Duration> Read(int64_t seconds, int32_t nanos) {
  google::protobuf::Duration proto;
  proto.set_seconds(seconds);
  proto.set_nanos(nanos);
  return ReadDuration("ttl", proto);
}

TEST(DurationProtoTest, ReadsWhatItWrites) {
  for (const absl::Duration duration :
       {absl::ZeroDuration(), absl::Nanoseconds(1), -absl::Nanoseconds(1),
        absl::Seconds(315'576'000'000) + absl::Nanoseconds(999'999'999),
        -absl::Seconds(315'576'000'000) - absl::Nanoseconds(999'999'999),
        absl::Milliseconds(1500), -absl::Milliseconds(1500)}) {
    const auto read = ReadDuration("ttl", ToProto(duration));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, duration);
  }
}

TEST(DurationProtoTest, RefusesWhatIsNoDuration) {
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  const struct {
    int64_t seconds;
    int32_t nanos;
    const char* message;
  } cases[] = {
      {315'576'000'001, 0,
       "ttl.seconds must be in [-315576000000, 315576000000]; got "
       "315576000001"},
      {-315'576'000'001, 0, "got -315576000001"},
      {kMin, 0, "got -9223372036854775808"},
      {kMax, 0, "got 9223372036854775807"},
      {5, 1'000'000'000,
       "ttl.nanos must be in [-999999999, 999999999]; got 1000000000"},
      {0, -1'000'000'000, "got -1000000000"},
      {0, std::numeric_limits<int32_t>::min(), "got -2147483648"},
      {5, -1,
       "ttl.nanos must be of the same sign as its seconds, which are 5; got "
       "-1"},
      {-5, 1, "which are -5; got 1"}};
  for (const auto& test : cases) {
    const absl::Status status = Read(test.seconds, test.nanos).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ReasonOf(status), error_reason::kInvalidRequest);
    EXPECT_THAT(std::string(status.message()),
                testing::HasSubstr(test.message));
  }
}

}  // namespace
}  // namespace attention
