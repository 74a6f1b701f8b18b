#include "server/rpc/status_translation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "google/rpc/status.pb.h"
#include "server/engine/error_reason.h"

namespace attention {
namespace {

google::rpc::Status Details(const grpc::Status& status) {
  google::rpc::Status details;
  EXPECT_TRUE(details.ParseFromString(status.error_details()));
  return details;
}

google::rpc::ErrorInfo Info(const grpc::Status& status) {
  google::rpc::ErrorInfo info;
  const google::rpc::Status details = Details(status);
  EXPECT_GE(details.details_size(), 1);
  if (details.details_size() > 0) {
    EXPECT_TRUE(details.details(0).UnpackTo(&info));
    EXPECT_EQ(details.details(0).type_url(),
              "type.googleapis.com/google.rpc.ErrorInfo");
  }
  return info;
}

TEST(StatusTranslationTest, KeepsOk) {
  const grpc::Status status = ToGrpcStatus(absl::OkStatus(), std::nullopt);
  EXPECT_TRUE(status.ok());
  EXPECT_TRUE(status.error_details().empty());
}

TEST(StatusTranslationTest, KeepsEveryCodeAndTheMessage) {
  for (int code = 1; code <= 16; ++code) {
    const grpc::Status status = ToGrpcStatus(
        absl::Status(static_cast<absl::StatusCode>(code), "why"), std::nullopt);
    EXPECT_EQ(status.error_code(), code);
    EXPECT_EQ(status.error_message(), "why");
    EXPECT_EQ(Details(status).code(), code);
    EXPECT_EQ(Details(status).message(), "why");
    EXPECT_EQ(Info(status).domain(), "attention.v1");
  }
}

TEST(StatusTranslationTest, PassesEveryReasonOn) {
  for (std::string_view reason : error_reason::kAll) {
    const grpc::Status status = ToGrpcStatus(
        WithReason(absl::ResourceExhaustedError("x"), reason), std::nullopt);
    EXPECT_EQ(Info(status).reason(), std::string(reason));
  }
}

TEST(StatusTranslationTest, PassesFactsOn) {
  const grpc::Status status = ToGrpcStatus(
      WithFact(WithReason(absl::NotFoundError("x"), error_reason::kWrongReplica),
               error_fact::kReplica, "a-1"),
      std::nullopt);
  const google::rpc::ErrorInfo info = Info(status);
  ASSERT_EQ(info.metadata_size(), 1);
  EXPECT_EQ(info.metadata().at("replica"), "a-1");
}

TEST(StatusTranslationTest, FindsAReasonByCode) {
  const std::pair<absl::StatusCode, std::string_view> cases[] = {
      {absl::StatusCode::kInvalidArgument, error_reason::kInvalidRequest},
      {absl::StatusCode::kUnimplemented, error_reason::kUnsupported},
      {absl::StatusCode::kResourceExhausted, error_reason::kOutOfMemory},
      {absl::StatusCode::kDeadlineExceeded, error_reason::kDeadlineExceeded},
      {absl::StatusCode::kCancelled, error_reason::kCancelled},
      {absl::StatusCode::kUnavailable, error_reason::kDeviceFailed},
      {absl::StatusCode::kInternal, error_reason::kInternal},
      {absl::StatusCode::kUnknown, error_reason::kInternal}};
  for (const auto& [code, reason] : cases) {
    EXPECT_EQ(PublicReason(absl::Status(code, "x")), reason);
  }
}

TEST(StatusTranslationTest, AddsRetryInfo) {
  const absl::Status full =
      WithReason(absl::ResourceExhaustedError("full"), error_reason::kQueueFull);
  const grpc::Status status = ToGrpcStatus(full, absl::Milliseconds(1250));
  const google::rpc::Status details = Details(status);
  ASSERT_EQ(details.details_size(), 2);
  google::rpc::RetryInfo retry;
  ASSERT_TRUE(details.details(1).UnpackTo(&retry));
  EXPECT_EQ(retry.retry_delay().seconds(), 1);
  EXPECT_EQ(retry.retry_delay().nanos(), 250'000'000);
}

// Headers are limited to 8 KiB, and a message travels twice.
TEST(StatusTranslationTest, CutsLongMessages) {
  const grpc::Status status = ToGrpcStatus(
      absl::InternalError(std::string(1 << 20, 'x')), std::nullopt);
  EXPECT_LT(status.error_message().size() + status.error_details().size(), 4096u);
  EXPECT_EQ(Info(status).reason(), "INTERNAL");
}

}  // namespace
}  // namespace attention
