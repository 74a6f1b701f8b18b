#include "server/metrics/exposer.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/server/metrics/metric_reader.h"

namespace attention {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

int Connect(const std::string& address) {
  const size_t colon = address.rfind(':');
  sockaddr_in target = {};
  target.sin_family = AF_INET;
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(colon + 1), &port)) << address;
  target.sin_port = htons(static_cast<uint16_t>(port));
  EXPECT_EQ(
      inet_pton(AF_INET, address.substr(0, colon).c_str(), &target.sin_addr), 1)
      << address;
  const int connection = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(
      connect(connection, reinterpret_cast<sockaddr*>(&target), sizeof(target)),
      0);
  return connection;
}

// The whole answer, with its header.
std::string HttpGet(const std::string& address, const std::string& path) {
  const int connection = Connect(address);
  const std::string request = absl::StrCat(
      "GET ", path, " HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(send(connection, request.data(), request.size(), 0),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  ssize_t count;
  while ((count = recv(connection, buffer, sizeof(buffer), 0)) > 0) {
    answer.append(buffer, static_cast<size_t>(count));
  }
  close(connection);
  return answer;
}

TEST(MetricsExposerTest, ServesTheMetricsOnAFreePort) {
  Metrics metrics({.version = "4.5.6", .backend = "cpu"});
  auto exposer = MetricsExposer::Create("127.0.0.1:0", metrics);
  ASSERT_TRUE(exposer.ok()) << exposer.status();
  EXPECT_THAT((*exposer)->address(), StartsWith("127.0.0.1:"));
  EXPECT_NE((*exposer)->address(), "127.0.0.1:0");
  metrics.RequestStarted();
  const std::string answer = HttpGet((*exposer)->address(), "/metrics");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answer, HasSubstr("attention_requests_started_total 1"));
  EXPECT_THAT(
      answer,
      HasSubstr(R"(attention_build_info{backend="cpu",version="4.5.6"})"));
}

TEST(MetricsExposerTest, OutlivesTheMetrics) {
  auto metrics = std::make_unique<Metrics>(Metrics::Options{});
  auto exposer = MetricsExposer::Create("127.0.0.1:0", *metrics);
  ASSERT_TRUE(exposer.ok()) << exposer.status();
  metrics->RequestStarted();
  metrics.reset();
  EXPECT_THAT(HttpGet((*exposer)->address(), "/metrics"),
              HasSubstr("attention_requests_started_total 1"));
}

TEST(MetricsExposerTest, SaysWhichAddressIsTaken) {
  Metrics metrics({});
  auto first = MetricsExposer::Create("127.0.0.1:0", metrics);
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string address = (*first)->address();
  auto second = MetricsExposer::Create(address, metrics);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(address));
  // The port is free again afterwards.
  first->reset();
  auto third = MetricsExposer::Create(address, metrics);
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_EQ((*third)->address(), address);
}

TEST(MetricsExposerTest, RefusesMalformedAddresses) {
  Metrics metrics({});
  for (const char* address :
       {"", ":", "9464", "127.0.0.1", "127.0.0.1:", ":9464", "127.0.0.1:65536",
        "127.0.0.1:-1", "127.0.0.1:80s", "127.0.0.1:1,127.0.0.1:2",
        "127.0.0.1:0x10", "::1:80", "127.0.0.1:99999999999999999999"}) {
    const auto exposer = MetricsExposer::Create(address, metrics);
    EXPECT_EQ(exposer.status().code(), absl::StatusCode::kInvalidArgument)
        << address;
    EXPECT_THAT(std::string(exposer.status().message()),
                HasSubstr(absl::StrCat("got \"", address, "\"")));
  }
}

TEST(MetricsExposerTest, RefusesAddressesOfOtherHosts) {
  Metrics metrics({});
  // TEST-NET-1 (RFC 5737) belongs to nobody.
  const auto exposer = MetricsExposer::Create("192.0.2.1:0", metrics);
  EXPECT_EQ(exposer.status().code(), absl::StatusCode::kUnavailable);
}

TEST(MetricsExposerTest, PromtoolAcceptsTheText) {
  if (std::system("command -v promtool >/dev/null") != 0) {
    GTEST_SKIP() << "promtool is not installed";
  }
  Metrics metrics({.version = "1.0 \"quoted\"\n", .backend = "cpu"});
  const HeadConfig config = {.head_dim_qk = 64,
                             .head_dim_v = 64,
                             .query_head_count = 4,
                             .kv_head_count = 2};
  metrics.RequestStarted();
  metrics.RequestFinished(&config, absl::StatusCode::kOk, absl::Seconds(1));
  metrics.BatchStarted("cpu:0");
  metrics.BatchFinished({.config = config,
                         .device = "cpu:0",
                         .request_count = 1,
                         .compute = absl::Seconds(1)});
  MemoryPool pool({.name = "host", .budget_bytes = 1}, MakeHostAllocator());
  metrics.AddPool(&pool, "cpu:0");
  const std::string text = MetricReader(metrics).Text();
  metrics.RemovePool(&pool);
  FILE* promtool = popen("promtool check metrics 2>&1", "w");
  ASSERT_NE(promtool, nullptr);
  ASSERT_EQ(fwrite(text.data(), 1, text.size(), promtool), text.size());
  EXPECT_EQ(pclose(promtool), 0);
}

// Neither a scanner nor a stuck scraper keeps Prometheus out.
TEST(MetricsExposerTest, SilentConnectionsDoNotKeepOthersOut) {
  const Metrics metrics({});
  const auto exposer = MetricsExposer::Create("127.0.0.1:0", metrics);
  ASSERT_TRUE(exposer.ok()) << exposer.status();
  std::vector<int> silent;
  for (int i = 0; i < 8; ++i) silent.push_back(Connect((*exposer)->address()));
  EXPECT_THAT(HttpGet((*exposer)->address(), "/metrics"),
              StartsWith("HTTP/1.1 200"));
  for (int connection : silent) close(connection);
}

}  // namespace
}  // namespace attention
