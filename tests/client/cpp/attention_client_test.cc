#include "client/cpp/attention_client.h"

#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/cpp/client_fixture.h"
#include "tests/client/cpp/fake_server.h"

namespace attention {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

TEST_F(AttentionClientTest, ComputesAndReturnsTheAnswer) {
  FakeServer server(FakeServer::Echo);
  const auto result = Connect(server.target())->Compute(request_);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->data_type, DataType::kFloat16);
  EXPECT_THAT(result->output_shape, ElementsAre(1, 7, 1, 1));
  EXPECT_EQ(result->output, bytes_);
  EXPECT_THAT(result->log_sum_exp, IsEmpty());
}

TEST_F(AttentionClientTest, ComputesOverAUnixSocket) {
  const std::string path =
      absl::StrCat(testing::TempDir(), "client_test_", getpid(), ".sock");
  FakeServer server(FakeServer::Echo, "unix:" + path);
  const auto result = Connect("unix:" + path)->Compute(request_);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->output, bytes_);
}

TEST_F(AttentionClientTest, MessagesMayExceedTheDefaultLimit) {
  FakeServer server(FakeServer::Echo);
  const std::string large(8 << 20, 'x');
  const auto result = Connect(server.target())->Compute(MakeRequest(large));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->output == large);
}

TEST_F(AttentionClientTest, ReturnsServerInfo) {
  FakeServer server(FakeServer::Echo);
  const auto info = Connect(server.target())->GetServerInfo();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->version(), "1.2.3");
  EXPECT_EQ(info->devices(0).name(), "cpu:0");
}

TEST_F(AttentionClientTest, ReportsHealth) {
  FakeServer server(FakeServer::Echo);
  const auto client = Connect(server.target());
  EXPECT_EQ(client->CheckHealth(), absl::OkStatus());
  EXPECT_EQ(client->CheckHealth("nobody").code(), absl::StatusCode::kNotFound);
  server.SetServing("attention.v1.AttentionService", false);
  const absl::Status status =
      client->CheckHealth("attention.v1.AttentionService");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("service attention.v1.AttentionService is not serving"));
  server.SetServing("attention.v1.AttentionService", true);
  EXPECT_EQ(client->CheckHealth("attention.v1.AttentionService"),
            absl::OkStatus());
}

TEST_F(AttentionClientTest, OptionsAreChecked) {
  const auto message = [](Client::Options options) {
    const auto client = Client::Create(std::move(options));
    EXPECT_EQ(client.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(client.status().message());
  };
  EXPECT_THAT(message({}), HasSubstr("target must not be empty"));
  EXPECT_THAT(message({.target = "a:1", .channel_count = 0}),
              HasSubstr("channel_count must be in [1, 64]; got 0"));
  EXPECT_THAT(message({.target = "a:1", .channel_count = 65}),
              HasSubstr("got 65"));
  EXPECT_THAT(message({.target = "a:1", .timeout = absl::ZeroDuration()}),
              HasSubstr("timeout must be more than 0; got 0"));
  EXPECT_THAT(message({.target = "a:1", .max_attempts = 0}),
              HasSubstr("max_attempts must be in [1, 100]; got 0"));
}

TEST_F(AttentionClientTest, ErrorsKeepMessageAndReason) {
  FakeServer server([](auto...) {
    return FakeServer::Error(grpc::StatusCode::INVALID_ARGUMENT,
                             "scale must be finite; got nan",
                             "INVALID_REQUEST");
  });
  const absl::Status status =
      Connect(server.target())->Compute(request_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "scale must be finite; got nan");
  EXPECT_EQ(ErrorReason(status), "INVALID_REQUEST");
  EXPECT_EQ(server.compute_calls(), 1);
  EXPECT_EQ(ErrorReason(absl::InternalError("x")), "");
}

TEST_F(AttentionClientTest, AnAnswerThatContradictsItselfIsAnError) {
  FakeServer server([](grpc::ServerContext* context, const auto& request,
                       v1::ComputeAttentionResponse* response) {
    const grpc::Status status = FakeServer::Echo(context, request, response);
    response->mutable_output()->pop_back();
    return status;
  });
  EXPECT_EQ(Connect(server.target())->Compute(request_).status().code(),
            absl::StatusCode::kInternal);
}

TEST_F(AttentionClientTest, CallsTakeTurnsOnTheChannels) {
  absl::Mutex mutex;
  std::map<std::string, int> calls_by_peer;
  FakeServer server(
      [&](grpc::ServerContext* context, const auto& request, auto* response) {
        absl::MutexLock lock(&mutex);
        ++calls_by_peer[context->peer()];
        return FakeServer::Echo(context, request, response);
      });
  const auto client = Connect(server.target(), {.channel_count = 3});
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(client->Compute(request_).ok());
  absl::MutexLock lock(&mutex);
  EXPECT_THAT(calls_by_peer, SizeIs(3));
  EXPECT_THAT(calls_by_peer, Each(Pair(testing::_, 2)));
}

TEST_F(AttentionClientTest, DestroyingTheClientCancelsItsCalls) {
  absl::Notification entered, release;
  FakeServer server([&](auto...) {
    entered.Notify();
    release.WaitForNotification();
    return grpc::Status::OK;
  });
  absl::StatusOr<AttentionResult> result;
  {
    const auto client = Connect(server.target());
    client->ComputeAsync(request_, [&](absl::StatusOr<AttentionResult> answer) {
      result = std::move(answer);
    });
    entered.WaitForNotification();
  }
  // The destructor waited for the callback: no lock is needed.
  EXPECT_EQ(result.status().code(), absl::StatusCode::kCancelled);
  release.Notify();
}

TEST_F(AttentionClientTest, AnAsynchronousCallMayStartTheNextOne) {
  FakeServer server(FakeServer::Echo);
  const auto client = Connect(server.target());
  absl::Notification finished;
  int remaining = 50;
  std::function<void()> next = [&] {
    client->ComputeAsync(request_, [&](absl::StatusOr<AttentionResult> answer) {
      EXPECT_TRUE(answer.ok()) << answer.status();
      if (--remaining == 0) return finished.Notify();
      next();
    });
  };
  next();
  finished.WaitForNotification();
  EXPECT_EQ(server.compute_calls(), 50);
}

// The last client takes the event loop's threads with it, which must not still
// hold anything of the call that ended just before.
TEST_F(AttentionClientTest, ClientsComeAndGo) {
  FakeServer server(FakeServer::Echo);
  for (int round = 0; round < 200; ++round) {
    const auto client = Connect(server.target(), {.channel_count = 1});
    EXPECT_TRUE(client->Compute(request_).ok());
  }
}

// Every callback runs exactly once, with the answer to its own request,
// whatever the server does in between.
TEST_F(AttentionClientTest, AsynchronousStorm) {
  std::atomic<int> arrivals = 0;
  FakeServer server(
      [&](grpc::ServerContext* context, const auto& request, auto* response) {
        switch (++arrivals % 5) {
          case 0:
            return grpc::Status(grpc::StatusCode::UNAVAILABLE, "x");
          case 1:
            return grpc::Status(grpc::StatusCode::INTERNAL, "x");
          default:
            return FakeServer::Echo(context, request, response);
        }
      });
  constexpr int kThreads = 4, kCalls = 150;
  std::vector<std::atomic<int>> callbacks(kThreads * kCalls);
  std::atomic<int> answers = 0;
  absl::BlockingCounter pending(kThreads * kCalls);
  const auto client = Connect(server.target(), {.channel_count = 4});
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kCalls; ++i) {
        const int id = t * kCalls + i;
        const std::string bytes = absl::StrCat("id", id + 100000);
        client->ComputeAsync(
            MakeRequest(bytes),
            [&, id, bytes](absl::StatusOr<AttentionResult> answer) {
              ++callbacks[id];
              if (answer.ok()) {
                ++answers;
                EXPECT_EQ(answer->output, bytes);
              }
              pending.DecrementCount();
            });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  pending.Wait();
  for (const auto& count : callbacks) EXPECT_EQ(count, 1);
  EXPECT_GT(answers, 0);
}

TEST_F(AttentionClientTest, DestroyedInTheMiddleOfAStorm) {
  FakeServer server(
      [&](grpc::ServerContext* context, const auto& request, auto* response) {
        return request.query().size() % 4 == 0
                   ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "x")
                   : FakeServer::Echo(context, request, response);
      });
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> callbacks = 0;
    {
      const auto client = Connect(server.target());
      for (int i = 1; i <= 30; ++i) {
        client->ComputeAsync(
            MakeRequest(std::string(2 * i, 'x')),
            [&](absl::StatusOr<AttentionResult>) { ++callbacks; });
      }
    }
    EXPECT_EQ(callbacks, 30);
  }
}

}  // namespace
}  // namespace attention
