#include "client/cpp/attention_client.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "client/cpp/client_factory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/cpp/fake_server.h"

namespace attention {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

// Lets no time pass in waits, but says that it did.
class FakeClock : public CallClock {
 public:
  absl::Time Now() override {
    absl::MutexLock lock(&mutex_);
    return now_;
  }

  std::unique_ptr<Wait> RunAfter(absl::Duration delay,
                                 std::function<void()> callback) override {
    {
      absl::MutexLock lock(&mutex_);
      now_ += delay;
      delays_.push_back(delay);
    }
    return Real()->RunAfter(absl::ZeroDuration(), std::move(callback));
  }

  std::vector<absl::Duration> delays() {
    absl::MutexLock lock(&mutex_);
    return delays_;
  }

 private:
  absl::Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_) = absl::UnixEpoch();
  std::vector<absl::Duration> delays_ ABSL_GUARDED_BY(mutex_);
};

AttentionRequest MakeRequest(const std::string& bytes) {
  AttentionRequest request;
  request.data_type = DataType::kFloat16;
  const auto count = static_cast<int64_t>(bytes.size() / 2);
  request.query = TensorView::Contiguous(bytes.data(), {1, count, 1, 1}, 2);
  request.key = request.value = request.query;
  return request;
}

class AttentionClientTest : public testing::Test {
 protected:
  std::unique_ptr<Client> Connect(const std::string& target,
                                  Client::Options options = {}) {
    options.target = target;
    auto client = CreateClient(options, RetryPolicy(), &clock_);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }

  FakeClock clock_;
  const std::string bytes_ = "some elements!";
  const AttentionRequest request_ = MakeRequest(bytes_);
};

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

TEST_F(AttentionClientTest, HealthOfAnUnreachableServerIsNotRetried) {
  const auto client = Connect("unix:/nonexistent/socket");
  EXPECT_EQ(client->CheckHealth().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(clock_.delays(), IsEmpty());
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

TEST_F(AttentionClientTest, RetriesWhileUnavailable) {
  std::atomic<int> calls = 0;
  FakeServer server(
      [&](grpc::ServerContext* context, const auto& request, auto* response) {
        if (++calls < 3) {
          return grpc::Status(grpc::StatusCode::UNAVAILABLE, "draining");
        }
        return FakeServer::Echo(context, request, response);
      });
  const auto result = Connect(server.target())->Compute(request_);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->output, bytes_);
  EXPECT_EQ(server.compute_calls(), 3);
  const std::vector<absl::Duration> delays = clock_.delays();
  ASSERT_THAT(delays, SizeIs(2));
  EXPECT_GE(delays[0], absl::Milliseconds(80));
  EXPECT_LE(delays[0], absl::Milliseconds(120));
  EXPECT_GE(delays[1], absl::Milliseconds(160));
  EXPECT_LE(delays[1], absl::Milliseconds(240));
}

TEST_F(AttentionClientTest, GivesUpAfterTheLastAttemptWithItsError) {
  FakeServer server([](auto...) {
    return FakeServer::Error(grpc::StatusCode::UNAVAILABLE, "draining",
                             "DRAINING");
  });
  const absl::Status status =
      Connect(server.target(), {.max_attempts = 3})->Compute(request_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "draining");
  EXPECT_EQ(ErrorReason(status), "DRAINING");
  EXPECT_EQ(server.compute_calls(), 3);
}

FakeServer::Handler FullQueue(const std::string& pushback) {
  return [pushback](grpc::ServerContext* context, auto...) {
    if (!pushback.empty()) {
      context->AddTrailingMetadata("grpc-retry-pushback-ms", pushback);
    }
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "queue is full");
  };
}

TEST_F(AttentionClientTest, AFullQueueIsRetriedAtItsPushback) {
  FakeServer server(FullQueue("250"));
  EXPECT_EQ(Connect(server.target())->Compute(request_).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(server.compute_calls(), 4);
  EXPECT_THAT(clock_.delays(), SizeIs(3));
  EXPECT_THAT(clock_.delays(),
              Each(testing::AllOf(testing::Ge(absl::Milliseconds(250)),
                                  testing::Le(absl::Milliseconds(300)))));
}

TEST_F(AttentionClientTest, ResourceExhaustedIsFinalWithoutAPositivePushback) {
  for (const char* pushback : {"", "-1", "later"}) {
    FakeServer server(FullQueue(pushback));
    EXPECT_EQ(Connect(server.target())->Compute(request_).status().code(),
              absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(server.compute_calls(), 1) << pushback;
  }
  EXPECT_THAT(clock_.delays(), IsEmpty());
}

TEST_F(AttentionClientTest, APushbackPastTheDeadlineEndsTheCallAtOnce) {
  FakeServer server(FullQueue("60000"));
  const absl::Status status =
      Connect(server.target())
          ->Compute(request_, {.timeout = absl::Seconds(59)})
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "queue is full");
  EXPECT_EQ(server.compute_calls(), 1);
}

TEST_F(AttentionClientTest, AttemptsShareOneDeadline) {
  absl::Mutex mutex;
  std::vector<double> remaining_seconds;
  FakeServer server([&](grpc::ServerContext* context, auto...) {
    absl::MutexLock lock(&mutex);
    remaining_seconds.push_back(
        std::chrono::duration<double>(context->deadline() -
                                      std::chrono::system_clock::now())
            .count());
    context->AddTrailingMetadata("grpc-retry-pushback-ms", "400000");
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "busy");
  });
  EXPECT_EQ(Connect(server.target())
                ->Compute(request_, {.timeout = absl::Seconds(1000)})
                .status()
                .code(),
            absl::StatusCode::kUnavailable);
  absl::MutexLock lock(&mutex);
  // The jitter takes up to 80 s; gRPC rounds timeouts up to two or three
  // digits.
  ASSERT_GE(remaining_seconds.size(), 2);
  EXPECT_GT(remaining_seconds[0], 900);
  EXPECT_LE(remaining_seconds[0], 1050);
  EXPECT_GT(remaining_seconds[1], 420);
  EXPECT_LE(remaining_seconds[1], 650);
}

TEST_F(AttentionClientTest, TheDeadlineEndsACallThatGetsNoAnswer) {
  absl::Notification release;
  FakeServer server([&](auto...) {
    release.WaitForNotification();
    return grpc::Status::OK;
  });
  EXPECT_EQ(Connect(server.target())
                ->Compute(request_, {.timeout = absl::Milliseconds(30)})
                .status()
                .code(),
            absl::StatusCode::kDeadlineExceeded);
  release.Notify();
}

TEST_F(AttentionClientTest, TimeoutsMayBeInfinite) {
  FakeServer server(FakeServer::Echo);
  const auto client = Connect(server.target());
  EXPECT_TRUE(
      client->Compute(request_, {.timeout = absl::InfiniteDuration()}).ok());
  EXPECT_EQ(client->Compute(request_, {.timeout = -absl::InfiniteDuration()})
                .status()
                .code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(AttentionClientTest, AnUnreachableServerIsRetriedAndThenUnavailable) {
  const absl::Status status =
      Connect("unix:/nonexistent/socket")->Compute(request_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(clock_.delays(), SizeIs(3));
}

TEST_F(AttentionClientTest, FindsAServerThatStartsDuringTheCall) {
  const std::string target = absl::StrCat(
      "unix:", testing::TempDir(), "client_test_late_", getpid(), ".sock");
  // Starts the server on the first wait; waits take real time.
  class StartingClock : public CallClock {
   public:
    explicit StartingClock(std::string target) : target_(std::move(target)) {}
    absl::Time Now() override { return Real()->Now(); }
    std::unique_ptr<Wait> RunAfter(absl::Duration delay,
                                   std::function<void()> callback) override {
      if (server_ == nullptr) {
        server_ = std::make_unique<FakeServer>(FakeServer::Echo, target_);
      }
      return Real()->RunAfter(delay, std::move(callback));
    }

   private:
    const std::string target_;
    std::unique_ptr<FakeServer> server_;
  } clock(target);
  const auto client = CreateClient({.target = target, .max_attempts = 20},
                                   RetryPolicy(), &clock);
  ASSERT_TRUE(client.ok()) << client.status();
  const auto result = (*client)->Compute(request_);
  EXPECT_TRUE(result.ok()) << result.status();
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

TEST_F(AttentionClientTest, DestroyingTheClientEndsWaitsBetweenAttempts) {
  class HourClock : public CallClock {
   public:
    absl::Time Now() override { return Real()->Now(); }
    std::unique_ptr<Wait> RunAfter(absl::Duration,
                                   std::function<void()> callback) override {
      auto wait = Real()->RunAfter(absl::Hours(1), std::move(callback));
      waiting.Notify();
      return wait;
    }
    absl::Notification waiting;
  } clock;
  absl::StatusOr<AttentionResult> result;
  {
    const auto client = CreateClient({.target = "unix:/nonexistent/socket"},
                                     RetryPolicy(), &clock);
    ASSERT_TRUE(client.ok()) << client.status();
    (*client)->ComputeAsync(request_,
                            [&](absl::StatusOr<AttentionResult> answer) {
                              result = std::move(answer);
                            });
    clock.waiting.WaitForNotification();
  }
  EXPECT_EQ(result.status().code(), absl::StatusCode::kCancelled);
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
