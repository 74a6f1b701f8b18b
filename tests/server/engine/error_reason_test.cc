#include "server/engine/error_reason.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>

namespace attention {
namespace {

TEST(ErrorReasonTest, TravelsInsideAStatus) {
  for (std::string_view reason : error_reason::kAll) {
    const absl::Status status =
        WithReason(absl::ResourceExhaustedError("full"), reason);
    const absl::Status copy = status;
    EXPECT_EQ(ReasonOf(copy), reason);
    EXPECT_EQ(copy.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(copy.message(), "full");
  }
}

TEST(ErrorReasonTest, TheLastReasonCounts) {
  const absl::Status status = WithReason(
      WithReason(absl::UnavailableError("gone"), error_reason::kDeviceFailed),
      error_reason::kDraining);
  EXPECT_EQ(ReasonOf(status), error_reason::kDraining);
}

TEST(ErrorReasonTest, IsEmptyWithoutAKnownReason) {
  EXPECT_EQ(ReasonOf(absl::OkStatus()), "");
  EXPECT_EQ(ReasonOf(absl::InternalError("no reason")), "");
  EXPECT_EQ(ReasonOf(WithReason(absl::InternalError(""), "NO_SUCH")), "");
  EXPECT_TRUE(WithReason(absl::OkStatus(), error_reason::kInternal).ok());
}

TEST(ErrorReasonTest, FactsTravelWithTheReason) {
  absl::Status status = WithFact(
      WithReason(absl::NotFoundError("elsewhere"), error_reason::kWrongReplica),
      error_fact::kReplica, "a-1");
  status = WithFact(std::move(status), error_fact::kTokenCount, "17");
  EXPECT_EQ(ReasonOf(status), error_reason::kWrongReplica);
  std::map<std::string, std::string> facts;
  ForEachFact(status, [&](absl::string_view key, absl::string_view value) {
    facts.emplace(key, value);
  });
  EXPECT_EQ(facts, (std::map<std::string, std::string>{{"replica", "a-1"},
                                                       {"token_count", "17"}}));
  EXPECT_TRUE(WithFact(absl::OkStatus(), error_fact::kReplica, "b").ok());
}

}  // namespace
}  // namespace attention
