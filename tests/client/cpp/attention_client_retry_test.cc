// Retries, deadlines and waits of the client.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "client/cpp/attention_client.h"
#include "client/cpp/client_factory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/cpp/client_fixture.h"
#include "tests/client/cpp/fake_server.h"

namespace attention {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::SizeIs;

using AttentionClientRetryTest = AttentionClientTest;

TEST_F(AttentionClientRetryTest, HealthOfAnUnreachableServerIsNotRetried) {
  const auto client = Connect("unix:/nonexistent/socket");
  EXPECT_EQ(client->CheckHealth().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(clock_.delays(), IsEmpty());
}

TEST_F(AttentionClientRetryTest, RetriesWhileUnavailable) {
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

TEST_F(AttentionClientRetryTest, GivesUpAfterTheLastAttemptWithItsError) {
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

TEST_F(AttentionClientRetryTest, AFullQueueIsRetriedAtItsPushback) {
  FakeServer server(FullQueue("250"));
  EXPECT_EQ(Connect(server.target())->Compute(request_).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(server.compute_calls(), 4);
  EXPECT_THAT(clock_.delays(), SizeIs(3));
  EXPECT_THAT(clock_.delays(), Each(AllOf(Ge(absl::Milliseconds(250)),
                                          Le(absl::Milliseconds(300)))));
}

TEST_F(AttentionClientRetryTest,
       ResourceExhaustedIsFinalWithoutAPositivePushback) {
  for (const char* pushback : {"", "-1", "later"}) {
    FakeServer server(FullQueue(pushback));
    EXPECT_EQ(Connect(server.target())->Compute(request_).status().code(),
              absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(server.compute_calls(), 1) << pushback;
  }
  EXPECT_THAT(clock_.delays(), IsEmpty());
}

TEST_F(AttentionClientRetryTest, APushbackPastTheDeadlineEndsTheCallAtOnce) {
  FakeServer server(FullQueue("60000"));
  const absl::Status status =
      Connect(server.target())
          ->Compute(request_, {.timeout = absl::Seconds(59)})
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "queue is full");
  EXPECT_EQ(server.compute_calls(), 1);
}

TEST_F(AttentionClientRetryTest, AttemptsShareOneDeadline) {
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

TEST_F(AttentionClientRetryTest, TheDeadlineEndsACallThatGetsNoAnswer) {
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

TEST_F(AttentionClientRetryTest, TimeoutsMayBeInfinite) {
  FakeServer server(FakeServer::Echo);
  const auto client = Connect(server.target());
  EXPECT_TRUE(
      client->Compute(request_, {.timeout = absl::InfiniteDuration()}).ok());
  EXPECT_EQ(client->Compute(request_, {.timeout = -absl::InfiniteDuration()})
                .status()
                .code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(AttentionClientRetryTest,
       AnUnreachableServerIsRetriedAndThenUnavailable) {
  const absl::Status status =
      Connect("unix:/nonexistent/socket")->Compute(request_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(clock_.delays(), SizeIs(3));
}

TEST_F(AttentionClientRetryTest, FindsAServerThatStartsDuringTheCall) {
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

TEST_F(AttentionClientRetryTest, DestroyingTheClientEndsWaitsBetweenAttempts) {
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

}  // namespace
}  // namespace attention
