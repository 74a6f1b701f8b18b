#include "server/lifecycle/listener.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"

namespace attention {
namespace {

using ::testing::AllOf;
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

absl::StatusOr<Listener> Open(const std::string& address) {
  return Listener::Open(*ParseListenAddress(address));
}

int PortOf(const Listener& listener) {
  const std::string& address = listener.address();
  return std::stoi(address.substr(address.rfind(':') + 1));
}

template <typename Address>
bool Connects(const Address& address) {
  const auto* const name = reinterpret_cast<const sockaddr*>(&address);
  const int fd = socket(name->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool connected = connect(fd, name, sizeof(address)) == 0;
  close(fd);
  return connected;
}

bool ConnectsV4(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return Connects(address);
}

bool ConnectsV6(int port) {
  sockaddr_in6 address = {};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(static_cast<uint16_t>(port));
  address.sin6_addr = in6addr_loopback;
  return Connects(address);
}

// Machines without IPv6 have no loopback of it to bind.
bool HasV6() { return Open("[::1]:0").ok(); }

TEST(ListenerTest, ListensOnOneAddress) {
  std::optional<Listener> listener = *Open("127.0.0.1:0");
  const int port = PortOf(*listener);
  EXPECT_EQ(listener->address(), absl::StrCat("127.0.0.1:", port));
  EXPECT_EQ(listener->sockets().size(), 1u);
  EXPECT_TRUE(ConnectsV4(port));
  EXPECT_FALSE(ConnectsV6(port));
  listener.reset();
  EXPECT_FALSE(ConnectsV4(port));
}

TEST(ListenerTest, AWildcardMeansBothFamilies) {
  for (const char* address : {"0.0.0.0:0", "[::]:0"}) {
    const auto listener = Open(address);
    ASSERT_TRUE(listener.ok()) << listener.status();
    EXPECT_TRUE(ConnectsV4(PortOf(*listener))) << address;
    EXPECT_EQ(ConnectsV6(PortOf(*listener)), HasV6()) << address;
  }
}

TEST(ListenerTest, ANameMeansAllItsAddressesWithOnePort) {
  const auto listener = Open("localhost:0");
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_TRUE(ConnectsV4(PortOf(*listener)));
  EXPECT_EQ(listener->address(), absl::StrCat("localhost:", PortOf(*listener)));
}

TEST(ListenerTest, ConnectionsDoNotDelaySmallMessages) {
  const auto listener = Open("127.0.0.1:0");
  ASSERT_TRUE(listener.ok());
  std::thread client([&] { ConnectsV4(PortOf(*listener)); });
  pollfd polled = {listener->sockets()[0], POLLIN, 0};
  EXPECT_EQ(poll(&polled, 1, -1), 1);
  const int connection = accept(listener->sockets()[0], nullptr, nullptr);
  client.join();
  const auto option = [connection](int name) {
    int value = 0;
    socklen_t size = sizeof(value);
    EXPECT_EQ(getsockopt(connection, IPPROTO_TCP, name, &value, &size), 0);
    return value;
  };
  EXPECT_EQ(option(TCP_NODELAY), 1);
  EXPECT_EQ(option(TCP_USER_TIMEOUT), 20'000);
  close(connection);
}

TEST(ListenerTest, SaysWhyItCannotListen) {
  // An address of the documentation's range is nobody's.
  const absl::Status nobodys = Open("192.0.2.1:0").status();
  EXPECT_EQ(nobodys.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(
      std::string(nobodys.message()),
      AllOf(HasSubstr("192.0.2.1:0"), HasSubstr("assign requested address")));
  EXPECT_THAT(
      std::string(Open("unix:/no/such/folder/s").status().message()),
      AllOf(HasSubstr("unix:/no/such/folder/s"), HasSubstr("No such file")));
  EXPECT_THAT(std::string(Open("no-such-host.invalid:0").status().message()),
              HasSubstr("no-such-host.invalid:0"));
  const auto listener = Open("127.0.0.1:0");
  ASSERT_TRUE(listener.ok());
  const absl::Status taken = Open(listener->address()).status();
  EXPECT_THAT(std::string(taken.message()),
              AllOf(HasSubstr(listener->address()),
                    HasSubstr("Address already in use")));
}

}  // namespace
}  // namespace attention
