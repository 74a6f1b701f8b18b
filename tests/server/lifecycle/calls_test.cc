// What callers see when they wait, give up, or come when there is no room.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "tests/server/lifecycle/server_fixture.h"
#include "tests/server/metrics/metric_reader.h"

namespace attention::test {
namespace {

class CallsTest : public ServerTest {
 protected:
  // Puts one request on the only slot.
  std::future<Outcome> OccupyDevice() {
    std::future<Outcome> call = CallInBackground(SmallRequest());
    device_.AwaitInFlight(1);
    return call;
  }

  // Blocks until `count` requests wait in queues.
  void AwaitQueued(double count) {
    const MetricReader metrics(server().metrics());
    while (metrics.Sum("attention_queue_requests") != count) {
      std::this_thread::yield();
    }
  }

  PuppetDevice device_;
};

TEST_F(CallsTest, FullQueueAsksToRetry) {
  AttentionServer::Options options;
  options.scheduling.max_queued_requests = 1;
  StartServer(options, &device_);
  std::future<Outcome> running = OccupyDevice();
  std::future<Outcome> queued = CallInBackground(SmallRequest());
  AwaitQueued(1);

  const Outcome refused = Call(SmallRequest());
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(ReasonOf(refused.status), "QUEUE_FULL");
  const auto pushback = refused.trailers.find("grpc-retry-pushback-ms");
  ASSERT_NE(pushback, refused.trailers.end());
  int milliseconds = 0;
  ASSERT_TRUE(absl::SimpleAtoi(pushback->second, &milliseconds));
  EXPECT_GE(milliseconds, 10);
  EXPECT_LE(milliseconds, 5000);
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(refused.status.error_details()));
  google::rpc::RetryInfo retry;
  ASSERT_EQ(details.details_size(), 2);
  ASSERT_TRUE(details.details(1).UnpackTo(&retry));
  EXPECT_EQ(retry.retry_delay().seconds() * 1000 +
                retry.retry_delay().nanos() / 1'000'000,
            milliseconds);

  device_.Finish();
  EXPECT_TRUE(running.get().status.ok());
  device_.AwaitInFlight(1);
  device_.Finish();
  EXPECT_TRUE(queued.get().status.ok());
}

TEST_F(CallsTest, TenantsTakeTurns) {
  AttentionServer::Options options;
  options.scheduling.max_batch_requests = 1;
  StartServer(options, &device_);
  std::future<Outcome> running = OccupyDevice();
  std::vector<std::future<Outcome>> calls;
  for (const char* tenant : {"a", "a", "a", "b"}) {
    calls.push_back(std::async(std::launch::async, [tenant, channel = channel(),
                                                    request = SmallRequest()] {
      return Call(*channel, request, [tenant](grpc::ClientContext& context) {
        context.AddMetadata("attention-tenant", tenant);
      });
    }));
    AwaitQueued(static_cast<double>(calls.size()));
  }
  device_.Finish();  // now "a" has the turn, then "b"
  EXPECT_TRUE(running.get().status.ok());
  device_.AwaitInFlight(1);
  device_.Finish();
  device_.AwaitInFlight(1);
  device_.Finish();
  EXPECT_TRUE(calls[3].get().status.ok());
  EXPECT_EQ(device_.in_flight(), 1u);
  device_.Finish();
  device_.AwaitInFlight(1);
  device_.Finish();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(calls[i].get().status.ok());
}

TEST_F(CallsTest, ATenantsNameIsBounded) {
  StartServer({}, &device_);
  const Outcome outcome =
      Call(*channel(), SmallRequest(), [](grpc::ClientContext& context) {
        context.AddMetadata("attention-tenant", std::string(129, 'x'));
      });
  EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ReasonOf(outcome.status), "INVALID_REQUEST");
  EXPECT_NE(outcome.status.error_message().find("at most 128 bytes; got 129"),
            std::string::npos);
}

// Which one was meant nobody can know.
TEST_F(CallsTest, ACallHasOneTenant) {
  StartServer({}, &device_);
  for (const std::string& method : Methods()) {
    SCOPED_TRACE(method);
    const grpc::Status status =
        CallWithBytes(channel(), method, "", [](grpc::ClientContext& context) {
          context.AddMetadata("attention-tenant", "a");
          context.AddMetadata("attention-tenant", "b");
        });
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(ReasonOf(status), "INVALID_REQUEST");
    EXPECT_EQ(status.error_message(),
              "the metadata attention-tenant must have one value; got 2");
  }
}

TEST_F(CallsTest, WhatIsNoMessageOfAMethodIsRefusedWithAReason) {
  StartServer({}, &device_);
  std::vector<std::string> methods = Methods();
  methods.push_back("/grpc.health.v1.Health/Check");
  methods.push_back("/grpc.health.v1.Health/Watch");
  for (const std::string& method : methods) {
    SCOPED_TRACE(method);
    const grpc::Status status = CallWithBytes(channel(), method, "\xff");
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(ReasonOf(status), "INVALID_REQUEST");
    EXPECT_THAT(
        status.error_message(),
        testing::MatchesRegex("the message is not a valid \\w+Request"));
  }
  // Texts are UTF-8.
  const grpc::Status status = CallWithBytes(
      channel(), "/attention.v1.AttentionService/GetSession", "\x0a\x01\xff");
  EXPECT_EQ(status.error_message(),
            "the message is not a valid GetSessionRequest");
}

TEST_F(CallsTest, OtherErrorsAreNotWorthARetry) {
  StartServer({}, &device_);
  std::future<Outcome> call = OccupyDevice();
  device_.Finish(absl::InternalError("a fault"));
  const Outcome outcome = call.get();
  EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(outcome.status.error_message(), "a fault");
  EXPECT_EQ(ReasonOf(outcome.status), "INTERNAL");
  EXPECT_EQ(outcome.trailers.count("grpc-retry-pushback-ms"), 0u);
}

TEST_F(CallsTest, ExpiredRequestsAreAnsweredInTimeAndNeverRun) {
  StartServer({}, &device_);
  std::future<Outcome> running = OccupyDevice();
  const absl::Time start = absl::Now();
  const Outcome expired =
      CallInBackground(SmallRequest(), absl::Milliseconds(50)).get();
  EXPECT_EQ(expired.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  AwaitQueued(0);
  device_.Finish();
  EXPECT_TRUE(running.get().status.ok());
  server().Drain(absl::Seconds(30));
  EXPECT_EQ(device_.records().size(), 1u);
  const MetricReader metrics(server().metrics());
  EXPECT_EQ(metrics.Sum("attention_dropped_total"), 1);
  EXPECT_EQ(metrics.Sum("attention_requests_in_flight"), 0);
}

TEST_F(CallsTest, CancelledRequestsLeaveTheQueue) {
  StartServer({}, &device_);
  std::future<Outcome> running = OccupyDevice();
  grpc::ClientContext* context = nullptr;
  std::promise<void> ready;
  std::promise<void> asked;
  std::future<Outcome> cancelled = std::async(std::launch::async, [&] {
    return Call(
        *channel(), SmallRequest(),
        [&](grpc::ClientContext& c) {
          context = &c;
          ready.set_value();
        },
        [&] { asked.get_future().wait(); });
  });
  ready.get_future().wait();
  AwaitQueued(1);
  context->TryCancel();
  asked.set_value();
  EXPECT_EQ(cancelled.get().status.error_code(), grpc::StatusCode::CANCELLED);
  AwaitQueued(0);
  device_.Finish();
  EXPECT_TRUE(running.get().status.ok());
  EXPECT_EQ(device_.records().size(), 1u);
}

// A caller that leaves during the computation is counted as such.
TEST_F(CallsTest, CancellationDuringTheComputation) {
  StartServer({}, &device_);
  // Long enough for the call to get to the device before its time is over.
  for (absl::Duration timeout = absl::Milliseconds(100);
       device_.in_flight() == 0; timeout *= 2) {
    const Outcome outcome = CallInBackground(SmallRequest(), timeout).get();
    EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  // The server learns of it at its own time.
  std::future<bool> drained = std::async(
      std::launch::async, [&] { return server().Drain(absl::Seconds(30)); });
  device_.Finish();
  EXPECT_TRUE(drained.get());
  const MetricReader metrics(server().metrics());
  EXPECT_EQ(metrics.Sum("attention_requests_started_total"),
            metrics.Sum("attention_requests_total"));
  EXPECT_EQ(metrics.Sum("attention_requests_in_flight"), 0);
  EXPECT_EQ(device_.records().size(), 1u);
}

TEST_F(CallsTest, FailedDeviceShowsInHealth) {
  StartServer({}, &device_);
  EXPECT_TRUE(server().device_health().ok());
  device_.SetHealth(absl::InternalError("an illegal address"));
  const absl::Status health = server().device_health();
  EXPECT_THAT(std::string(health.message()),
              testing::AllOf(testing::HasSubstr("puppet:0"),
                             testing::HasSubstr("an illegal address")));
}

class StormTest : public ServerTest {};

// Callers that cancel and time out at random moments, in every state.
TEST_F(StormTest, EveryCallIsAnsweredOnceAndTheServerStaysWell) {
  AttentionServer::Options options;
  options.scheduling.max_queued_requests = 8;
  StartServer(options);
  std::atomic<int> answered{0};
  std::vector<std::thread> callers;
  for (int t = 0; t < 8; ++t) {
    callers.emplace_back([this, &answered, seed = random_()] {
      std::mt19937_64 random(seed);
      RequestSpec spec;
      spec.query_tokens = 64;
      spec.key_tokens = 256;
      const RequestMaker maker(spec, random);
      const auto own_channel = Connect(tcp_address());
      for (int i = 0; i < 60; ++i) {
        std::thread canceller;
        const auto delay = absl::Microseconds(
            std::uniform_int_distribution<int>(0, 3000)(random));
        const bool cancels = i % 2 == 0;
        const auto prepare = [&](grpc::ClientContext& context) {
          if (!cancels) {
            context.set_deadline(absl::ToChronoTime(absl::Now() + delay));
            return;
          }
          canceller = std::thread([&context, delay] {
            const absl::Time at = absl::Now() + delay;
            while (absl::Now() < at) std::this_thread::yield();
            context.TryCancel();
          });
        };
        const auto finished = [&] {
          if (canceller.joinable()) canceller.join();
        };
        const Outcome outcome =
            Call(*own_channel, maker.request(), prepare, finished);
        switch (outcome.status.error_code()) {
          case grpc::StatusCode::OK:
            EXPECT_TRUE(maker.Check(outcome.response));
            break;
          case grpc::StatusCode::CANCELLED:
          case grpc::StatusCode::DEADLINE_EXCEEDED:
          case grpc::StatusCode::RESOURCE_EXHAUSTED:
            break;
          default:
            ADD_FAILURE() << outcome.status.error_code() << " "
                          << outcome.status.error_message();
        }
        ++answered;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(answered, 8 * 60);

  const RequestMaker maker(RequestSpec(), random_);
  const Outcome outcome = Call(maker.request());
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_TRUE(maker.Check(outcome.response));

  EXPECT_TRUE(server().Drain(absl::Seconds(30)));
  const MetricReader metrics(server().metrics());
  EXPECT_EQ(metrics.Sum("attention_requests_started_total"),
            metrics.Sum("attention_requests_total"));
  for (const char* gauge :
       {"attention_requests_in_flight", "attention_queue_requests",
        "attention_queue_bytes", "attention_batches_in_flight"}) {
    EXPECT_EQ(metrics.Sum(gauge), 0) << gauge;
  }
  EXPECT_EQ(metrics.Sum("attention_memory_bytes", {{"state", "in_use"}}), 0);
}

}  // namespace
}  // namespace attention::test
