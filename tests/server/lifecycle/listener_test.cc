#include "server/lifecycle/listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace attention {
namespace {

using ::testing::HasSubstr;

TEST(ListenerTest, ParsesTcpAddresses) {
  const auto v4 = ParseListenAddress("0.0.0.0:50051");
  ASSERT_TRUE(v4.ok()) << v4.status();
  EXPECT_FALSE(v4->is_unix());
  EXPECT_EQ(v4->host, "0.0.0.0");
  EXPECT_EQ(v4->port, 50051);
  EXPECT_EQ(v4->Bound(7), "0.0.0.0:7");
  const auto v6 = ParseListenAddress("[::1]:0");
  ASSERT_TRUE(v6.ok()) << v6.status();
  EXPECT_EQ(v6->host, "::1");
  EXPECT_EQ(v6->Bound(7), "[::1]:7");
  EXPECT_TRUE(ParseListenAddress("localhost:1").ok());
}

TEST(ListenerTest, ParsesUnixSockets) {
  for (const char* text : {"unix:/run/a.sock", "unix:///run/a.sock"}) {
    const auto address = ParseListenAddress(text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_TRUE(address->is_unix());
    EXPECT_EQ(address->path, "/run/a.sock");
    EXPECT_EQ(address->Bound(1), "unix:/run/a.sock");
  }
}

TEST(ListenerTest, NamesAnAddressThatItDoesNotUnderstand) {
  for (const std::string& text :
       {std::string(""), std::string("host"), std::string(":1"),
        std::string("host:"), std::string("host:x"), std::string("host:65536"),
        std::string("host:-1"), std::string("::1:80"), std::string("unix:"),
        "unix:/" + std::string(108, 'x')}) {
    const absl::Status status = ParseListenAddress(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("\"" + text + "\""));
  }
}

TEST(ListenerTest, DiagnosesWhatCannotBeBound) {
  // An address of the documentation's range is nobody's.
  EXPECT_THAT(DiagnoseBindFailure(*ParseListenAddress("192.0.2.1:0")),
              HasSubstr("assign requested address"));
  EXPECT_THAT(DiagnoseBindFailure(*ParseListenAddress("unix:/no/such/folder/s")),
              HasSubstr("No such file"));
  EXPECT_EQ(DiagnoseBindFailure(*ParseListenAddress("127.0.0.1:0")), "");
}

}  // namespace
}  // namespace attention
