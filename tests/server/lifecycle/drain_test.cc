// What becomes of calls when a server goes away.
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <deque>
#include <future>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "grpc/grpc.h"
#include "grpc/support/alloc.h"
#include "tests/server/lifecycle/breaking_proxy.h"
#include "tests/server/lifecycle/server_fixture.h"
#include "tests/server/metrics/metric_reader.h"

namespace attention::test {
namespace {

class DrainTest : public ServerTest {
 protected:
  std::future<bool> DrainInBackground(absl::Duration timeout) {
    return std::async(std::launch::async,
                      [this, timeout] { return server().Drain(timeout); });
  }

  // Blocks until new connections are refused.
  void AwaitClosedListeners(const std::string& address) {
    while (Connect(address)->WaitForConnected(
        absl::ToChronoTime(absl::Now() + absl::Milliseconds(50)))) {
    }
  }

  // Blocks until new calls are refused.
  void AwaitRefusals() {
    while (CallWithBytes(channel(),
                         "/attention.v1.AttentionService/GetServerInfo", "")
               .ok()) {
    }
  }

  // A call whose message does not wholly arrive until the proxy is released.
  std::future<Outcome> CallThatIsHeld(const RequestMaker& maker) {
    proxy_.emplace(tcp_address(), std::deque<BreakingProxy::Limits>{
                                      {.hold_to_server = kHeldBytes}});
    EXPECT_GT(maker.request().ByteSizeLong(), 2 * kHeldBytes);
    std::future<Outcome> call =
        std::async(std::launch::async, [this, request = maker.request()] {
          return Call(*Connect(proxy_->address()), request);
        });
    proxy_->AwaitHeld();
    // Until gRPC knows the call, which is this server's first.
    for (bool known = false; !known;) {
      char* const servers = grpc_channelz_get_servers(0);
      known = absl::StrContains(servers, "\"callsStarted\":\"1\"");
      gpr_free(servers);
    }
    return call;
  }

  // A request that is larger than what is held.
  RequestMaker LargeRequest() {
    RequestSpec spec;
    spec.key_tokens = 1 << 14;
    return RequestMaker(spec, random_);
  }

  static constexpr size_t kHeldBytes = size_t{300} << 10;
  std::optional<BreakingProxy> proxy_;
  PuppetDevice device_;
};

TEST_F(DrainTest, FinishesWhatIsInFlight) {
  StartServer({}, &device_);
  const std::string address = tcp_address();
  std::future<Outcome> running = CallInBackground(SmallRequest());
  device_.AwaitInFlight(1);
  std::future<Outcome> queued = CallInBackground(SmallRequest());
  const MetricReader metrics(server().metrics());
  while (metrics.Sum("attention_queue_requests") != 1) {
    std::this_thread::yield();
  }
  std::future<bool> drained = DrainInBackground(absl::Minutes(5));
  AwaitClosedListeners(address);
  AwaitRefusals();
  device_.Finish();
  EXPECT_TRUE(running.get().status.ok());
  device_.AwaitInFlight(1);
  device_.Finish();
  EXPECT_TRUE(queued.get().status.ok());
  EXPECT_TRUE(drained.get());
}

// Those that come too late can go elsewhere, and are told so.
TEST_F(DrainTest, RefusesLaterCallsOfEveryKind) {
  StartServer({}, &device_);
  std::future<Outcome> running = CallInBackground(SmallRequest());
  device_.AwaitInFlight(1);
  std::future<bool> drained = DrainInBackground(absl::Minutes(5));
  AwaitRefusals();

  for (const std::string& method : Methods()) {
    SCOPED_TRACE(method);
    const grpc::Status status = CallWithBytes(channel(), method, "");
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_EQ(ReasonOf(status), "DRAINING");
  }
  device_.Finish();
  EXPECT_TRUE(running.get().status.ok());
  EXPECT_TRUE(drained.get());
  EXPECT_EQ(device_.records().size(), 1u);
}

TEST_F(DrainTest, AnswersACallWhoseMessageIsArriving) {
  StartServer();
  const std::string address = tcp_address();
  const RequestMaker maker = LargeRequest();
  std::future<Outcome> call = CallThatIsHeld(maker);
  std::future<bool> drained = DrainInBackground(absl::Minutes(5));
  AwaitClosedListeners(address);
  proxy_->Release();
  const Outcome outcome = call.get();
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_TRUE(maker.Check(outcome.response));
  EXPECT_TRUE(drained.get());
}

// One that never arrives does not keep the server.
TEST_F(DrainTest, DoesNotWaitForAMessageThatStandsStill) {
  StartServer();
  std::future<Outcome> call = CallThatIsHeld(LargeRequest());
  const absl::Time start = absl::Now();
  EXPECT_TRUE(server().Drain(absl::Minutes(5)));
  EXPECT_LT(absl::Now() - start, absl::Minutes(1));
  proxy_->Release();
  EXPECT_EQ(call.get().status.error_code(), grpc::StatusCode::UNAVAILABLE);
}

// Callers that take no notice, and send on until the end.
TEST_F(DrainTest, UnderLoadCallsAreAnsweredOrRefused) {
  StartServer();
  std::atomic<bool> stopped{false};
  std::atomic<int> answered{0};
  std::vector<std::thread> callers;
  for (int t = 0; t < 8; ++t) {
    callers.emplace_back([&, t, seed = random_()] {
      std::mt19937_64 random(seed);
      RequestSpec spec;
      spec.key_tokens = 256;
      const RequestMaker maker(spec, random);
      const auto own_channel =
          Connect(t % 2 == 0 ? tcp_address() : unix_address());
      while (!stopped) {
        const Outcome outcome = Call(*own_channel, maker.request());
        if (outcome.status.ok()) {
          EXPECT_TRUE(maker.Check(outcome.response));
          ++answered;
        } else {
          EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::UNAVAILABLE)
              << outcome.status.error_message();
        }
      }
    });
  }
  while (answered < 100) std::this_thread::yield();
  const absl::Time start = absl::Now();
  EXPECT_TRUE(server().Drain(absl::Minutes(5)));
  EXPECT_LT(absl::Now() - start, absl::Minutes(1));
  stopped = true;
  for (std::thread& caller : callers) caller.join();
  const MetricReader metrics(server().metrics());
  EXPECT_EQ(metrics.Sum("attention_requests_started_total"),
            metrics.Sum("attention_requests_total"));
  // No answer was lost on its way.
  EXPECT_EQ(metrics.Sum("attention_requests_total", {{"code", "OK"}}),
            answered);
}

TEST_F(DrainTest, CancelsWhatTakesTooLong) {
  StartServer({}, &device_);
  std::future<Outcome> running = CallInBackground(SmallRequest());
  device_.AwaitInFlight(1);
  std::future<bool> drained = DrainInBackground(absl::Milliseconds(50));
  EXPECT_FALSE(running.get().status.ok());
  device_.Finish();  // what the device computes cannot be interrupted
  EXPECT_FALSE(drained.get());
}

}  // namespace
}  // namespace attention::test
