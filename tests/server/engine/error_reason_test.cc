#include "server/engine/error_reason.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace attention
