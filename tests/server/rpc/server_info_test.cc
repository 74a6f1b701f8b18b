#include "server/rpc/server_info.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/puppet_device.h"

namespace attention {
namespace {

TEST(ServerInfoTest, ReportsEveryLimit) {
  PuppetDevice device("puppet:0", /*slot_count=*/3);
  const RequestLimits limits = {.max_message_bytes = 1001,
                                .max_request_flops = 1002};
  Scheduler::Options scheduling;
  scheduling.max_batch_requests = 1003;
  scheduling.max_batch_bytes = 1004;
  scheduling.max_batch_tokens = 1005;
  scheduling.max_batch_time = absl::Milliseconds(1006);
  scheduling.max_queue_delay = absl::Milliseconds(1007);
  scheduling.max_queued_requests = 1008;
  scheduling.max_queued_bytes = 1009;
  scheduling.max_queued_time = absl::Milliseconds(1010);
  scheduling.max_tenants = 1011;
  scheduling.max_request_bytes = 1012;

  const v1::GetServerInfoResponse info =
      MakeServerInfo("1.2.3", {&device}, limits, scheduling,
                     absl::Milliseconds(1013), nullptr);
  EXPECT_EQ(info.version(), "1.2.3");
  ASSERT_EQ(info.devices_size(), 1);
  EXPECT_EQ(info.devices(0).name(), "puppet:0");
  EXPECT_EQ(info.devices(0).concurrent_batch_count(), 3);

  const v1::ServerLimits& reported = info.limits();
  EXPECT_EQ(reported.max_message_bytes(), 1001);
  EXPECT_EQ(reported.max_request_flops(), 1002);
  EXPECT_EQ(reported.max_batch_requests(), 1003);
  EXPECT_EQ(reported.max_batch_bytes(), 1004);
  EXPECT_EQ(reported.max_batch_tokens(), 1005);
  EXPECT_EQ(reported.max_batch_time().nanos(), 6'000'000);
  EXPECT_EQ(reported.max_queue_delay().nanos(), 7'000'000);
  EXPECT_EQ(reported.max_queued_requests(), 1008);
  EXPECT_EQ(reported.max_queued_bytes(), 1009);
  EXPECT_EQ(reported.max_queued_time().nanos(), 10'000'000);
  EXPECT_EQ(reported.max_queued_time().seconds(), 1);
  EXPECT_EQ(reported.max_tenants(), 1011);
  EXPECT_EQ(reported.max_request_bytes(), 1012);
  EXPECT_EQ(reported.max_upload_lease().nanos(), 13'000'000);
  EXPECT_EQ(reported.max_head_dim(), 256);
  EXPECT_EQ(reported.max_priority(), 100);
  EXPECT_EQ(reported.max_metadata_bytes(), 8 << 20);
  EXPECT_EQ(reported.max_request_sequences(), 1 << 18);
}

TEST(ServerInfoTest, NoBoundIsZero) {
  PuppetDevice device;
  Scheduler::Options scheduling;
  scheduling.max_request_bytes = std::numeric_limits<size_t>::max();
  const v1::GetServerInfoResponse info = MakeServerInfo(
      "", {&device}, {}, scheduling, absl::ZeroDuration(), nullptr);
  EXPECT_EQ(info.limits().max_request_bytes(), 0);
  EXPECT_EQ(info.limits().max_queued_time().seconds(), 0);
  EXPECT_EQ(info.limits().max_queued_time().nanos(), 0);
}

}  // namespace
}  // namespace attention
