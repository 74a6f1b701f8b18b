// Steps that do not wait for each other.
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "client/cpp/sessions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/cpp/client_fixture.h"
#include "tests/client/cpp/fake_session_server.h"

namespace attention {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::SizeIs;

class DecodeStreamTest : public AttentionClientTest {
 protected:
  static std::unique_ptr<Session> Create(Client& client) {
    auto session = client.sessions().Create(
        {.data_type = DataType::kFloat32, .head_dim_qk = 1, .head_dim_v = 1});
    EXPECT_TRUE(session.ok()) << session.status();
    return *std::move(session);
  }

  // One token whose query is 1.
  DecodeRequest Step(Session& session, const float& value) const {
    return {
        .items = {{&session}}, .query = &one_, .key = &value, .value = &value};
  }

  const float one_ = 1;
};

float First(const DecodeResult& result) {
  float first = 0;
  if (result.output.size() >= sizeof(first)) {
    std::memcpy(&first, result.output.data(), sizeof(first));
  }
  return first;
}

TEST_F(DecodeStreamTest, PipelinesStepsInOrder) {
  FakeSessionServer server;
  const auto client = Connect(server.target());
  const auto session = Create(*client);
  const auto stream = client->sessions().OpenDecodeStream();
  absl::Mutex mutex;
  std::vector<float> outputs;
  for (int i = 1; i <= 200; ++i) {
    const float value = static_cast<float>(i);
    stream->Send(Step(*session, value),
                 [&](absl::StatusOr<DecodeResult> result) {
                   ASSERT_TRUE(result.ok()) << result.status();
                   EXPECT_THAT(result->statuses, Each(absl::OkStatus()));
                   absl::MutexLock lock(&mutex);
                   outputs.push_back(First(*result));
                 });
    EXPECT_EQ(session->token_count(0), i);
  }
  EXPECT_EQ(stream->Close(), absl::OkStatus());
  absl::MutexLock lock(&mutex);
  ASSERT_THAT(outputs, SizeIs(200));
  for (int i = 1; i <= 200; ++i) {
    EXPECT_EQ(outputs[i - 1], static_cast<float>(i * (i + 1) / 2));
  }
}

TEST_F(DecodeStreamTest, ACallbackSendsTheNextStep) {
  FakeSessionServer server;
  const auto client = Connect(server.target());
  const auto session = Create(*client);
  const auto stream = client->sessions().OpenDecodeStream();
  absl::Notification finished;
  int steps = 0;
  std::function<void()> send = [&] {
    stream->Send(Step(*session, one_), [&](auto result) {
      EXPECT_EQ(First(*result), static_cast<float>(++steps));
      steps < 50 ? send() : finished.Notify();
    });
  };
  send();
  finished.WaitForNotification();
  EXPECT_EQ(session->token_count(0), 50);
}

// So many streams that several threads wait for events, and so many answers
// that one may be there before the thread that read the one before is done.
TEST_F(DecodeStreamTest, StreamsWhoseAnswersComeAtOnceEndOnce) {
  constexpr int kStreams = 8;
  constexpr int kSteps = 200;
  FakeSessionServer server;
  const auto client = Connect(server.target());
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<std::unique_ptr<DecodeStream>> streams;
  std::vector<int> answers(kStreams);
  for (int i = 0; i < kStreams; ++i) {
    sessions.push_back(Create(*client));
    streams.push_back(client->sessions().OpenDecodeStream());
  }
  for (int step = 1; step <= kSteps; ++step) {
    for (int i = 0; i < kStreams; ++i) {
      streams[i]->Send(Step(*sessions[i], one_), [&answers, i](auto result) {
        ASSERT_TRUE(result.ok()) << result.status();
        EXPECT_EQ(First(*result), static_cast<float>(++answers[i]));
      });
    }
  }
  for (const auto& stream : streams) {
    EXPECT_EQ(stream->Close(), absl::OkStatus());
  }
  EXPECT_THAT(answers, Each(kSteps));
}

TEST_F(DecodeStreamTest, ErrorsOfItemsAndMessagesLeaveTheStreamAlone) {
  int messages = 0;
  FakeSessionServer server(
      [&](grpc::ServerContext*, const std::string& method, bool happened) {
        return method == "StreamDecode" && !happened && ++messages == 2
                   ? grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "refused")
                   : grpc::Status::OK;
      });
  const auto client = Connect(server.target());
  const auto gone = Create(*client), refused = Create(*client),
             good = Create(*client);
  EXPECT_EQ(gone->Delete(), absl::OkStatus());
  const auto stream = client->sessions().OpenDecodeStream();
  std::vector<absl::StatusOr<DecodeResult>> results(3, DecodeResult());
  Session* const sessions[] = {gone.get(), refused.get(), good.get()};
  for (int i = 0; i < 3; ++i) {
    stream->Send(Step(*sessions[i], one_), [&results, i](auto result) {
      results[i] = std::move(result);
    });
  }
  EXPECT_EQ(stream->Close(), absl::OkStatus());
  ASSERT_TRUE(results[0].ok()) << results[0].status();
  EXPECT_TRUE(IsSessionGone(results[0]->statuses.at(0)));
  EXPECT_EQ(results[1].status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(results[1].status().message(), "refused");
  ASSERT_TRUE(results[2].ok()) << results[2].status();
  EXPECT_THAT(results[2]->statuses, ElementsAre(absl::OkStatus()));
  // What was counted too early.
  EXPECT_EQ(refused->token_count(0), 1);
  EXPECT_TRUE(refused->Refresh().ok());
  EXPECT_EQ(refused->token_count(0), 0);
}

TEST_F(DecodeStreamTest, ABrokenStreamAnswersEveryStep) {
  int messages = 0;
  FakeSessionServer server(
      [&](grpc::ServerContext*, const std::string& method, bool happened) {
        return method == "StreamDecode" && !happened && ++messages == 3
                   ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "draining")
                   : grpc::Status::OK;
      });
  const auto client = Connect(server.target());
  const auto session = Create(*client);
  const auto stream = client->sessions().OpenDecodeStream();
  absl::Mutex mutex;
  int answered = 0, broken = 0;
  for (int i = 0; i < 10; ++i) {
    stream->Send(Step(*session, one_), [&](auto result) {
      absl::MutexLock lock(&mutex);
      ++(result.ok() ? answered : broken);
    });
  }
  EXPECT_EQ(stream->Close(), absl::UnavailableError("draining"));
  {
    absl::MutexLock lock(&mutex);
    EXPECT_EQ(answered, 2);
    EXPECT_EQ(broken, 8);
  }
  absl::Status late;
  stream->Send(Step(*session, one_),
               [&](auto result) { late = result.status(); });
  EXPECT_EQ(late, absl::UnavailableError("draining"));
  EXPECT_TRUE(session->Refresh().ok());
  EXPECT_EQ(session->token_count(0), 2);
}

TEST_F(DecodeStreamTest, DestructionAnswersEveryStep) {
  absl::Notification release, arrived;
  FakeSessionServer server([&](grpc::ServerContext*, const std::string& method,
                               bool happened) {
    if (method == "StreamDecode" && !happened && !arrived.HasBeenNotified()) {
      arrived.Notify();
      release.WaitForNotification();
    }
    return grpc::Status::OK;
  });
  const auto client = Connect(server.target());
  const auto session = Create(*client);
  auto stream = client->sessions().OpenDecodeStream();
  absl::BlockingCounter answers(2);
  for (int i = 0; i < 2; ++i) {
    stream->Send(Step(*session, one_), [&](auto result) {
      EXPECT_EQ(result.status().code(), absl::StatusCode::kCancelled);
      answers.DecrementCount();
    });
  }
  arrived.WaitForNotification();
  stream = nullptr;
  answers.Wait();
  release.Notify();
}

TEST_F(DecodeStreamTest, AnUnreachableServerBreaksTheStream) {
  FakeSessionServer server;
  const auto client = Connect(server.target());
  const auto session = Create(*client);
  const auto nobody = Connect("unix:/nonexistent/socket");
  const auto stream = nobody->sessions().OpenDecodeStream();
  absl::Notification finished;
  stream->Send(Step(*session, one_), [&](auto result) {
    EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable);
    finished.Notify();
  });
  finished.WaitForNotification();
  EXPECT_EQ(stream->Close().code(), absl::StatusCode::kUnavailable);
}

TEST_F(DecodeStreamTest, ClosedStreamsTakeNoMore) {
  FakeSessionServer server;
  const auto client = Connect(server.target());
  const auto session = Create(*client);
  const auto stream = client->sessions().OpenDecodeStream();
  EXPECT_EQ(stream->Close(), absl::OkStatus());
  EXPECT_EQ(stream->Close(), absl::OkStatus());
  absl::Status late;
  stream->Send(Step(*session, one_),
               [&](auto result) { late = result.status(); });
  EXPECT_EQ(late.code(), absl::StatusCode::kUnavailable);
  stream->Send({}, [&](auto result) { late = result.status(); });
  EXPECT_EQ(session->token_count(0), 0);
}

}  // namespace
}  // namespace attention
