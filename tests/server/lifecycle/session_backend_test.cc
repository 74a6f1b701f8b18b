// Sessions over real connections, against the reference, on every backend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/server/engine/fake_cuda_runtime.h"
#include "tests/server/lifecycle/session_calls_fixture.h"

namespace attention::test {
namespace {

using ::testing::ElementsAre;

// On the backend that the parameter names.
class SessionBackendTest : public SessionCallsTest,
                           public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    if (absl::string_view(GetParam()) != "Cpu") {
      device_options_.backend = Backend::kCuda;
    }
    if (absl::string_view(GetParam()) == "FakeCuda") cuda_runtime_ = &cuda_;
    AttentionServer::Options options;
    options.session_defaults.page_tokens = 4;
    StartSessions(options);
  }

  // Before the GPUs go.
  void TearDown() override { SessionCallsTest::TearDown(); }

  FakeCudaRuntime cuda_{2};
};

INSTANTIATE_TEST_SUITE_P(Backends, SessionBackendTest,
                         testing::Values("Cpu", "FakeCuda", "Cuda"),
                         [](const auto& info) { return info.param; });

TEST_P(SessionBackendTest, RandomCallsMatchTheReference) {
  std::vector<ModelSession> sessions;
  for (int i = 0; i < 300 && !HasFatalFailure(); ++i) {
    const int action = sessions.size() < 2 ? 0 : Draw(0, 19);
    if (action == 0 && sessions.size() < 8) {
      v1::CreateSessionRequest request;
      *request.mutable_configuration() = Configuration();
      if (Draw(0, 2) == 0) {
        request.mutable_configuration()->set_window_left(Draw(0, 9));
        request.mutable_configuration()->set_sink_token_count(Draw(0, 6));
      }
      request.set_reserved_token_count(Draw(0, 1) * Draw(0, 30));
      sessions.push_back(Create(request));
      continue;
    }
    ModelSession& session = sessions[Draw(0, sessions.size() - 1)];
    const int layer = Draw(0, kLayers - 1);
    const int64_t tokens = session.layers[layer].tokens;
    // What a window has passed is gone.
    const bool has_window = session.window_left.has_value();
    switch (action) {
      case 1:
        ASSERT_TRUE(Delete(session.name).ok());
        std::swap(session, sessions.back());
        sessions.pop_back();
        break;
      case 2:
        if (!has_window) Truncate(session, Draw(0, static_cast<int>(tokens)));
        break;
      case 3: {
        const int64_t most =
            std::min(session.layers[0].tokens, session.layers[1].tokens);
        if (has_window) break;
        ModelSession fork =
            Draw(0, 1) == 0 ? Fork(session)
                            : Fork(session, Draw(0, static_cast<int>(most)));
        if (sessions.size() < 8) sessions.push_back(std::move(fork));
        break;
      }
      case 4:
      case 5:
      case 6:
        Append(session, layer, Draw(1, 20));
        break;
      case 7:
      case 8:
      case 9: {
        std::optional<KeyRange> range;
        if (!has_window && Draw(0, 1) == 0) {
          const int begin = Draw(0, static_cast<int>(tokens));
          range = {begin, Draw(begin, static_cast<int>(tokens))};
        }
        CheckAttend(session, layer, has_window ? 1 : Draw(1, 3), range);
        break;
      }
      default: {
        std::vector<Step> steps;
        for (ModelSession& each : sessions) {
          if (Draw(0, 2) > 0) {
            steps.push_back({&each, Draw(0, kLayers - 1), Draw(1, 3)});
          }
        }
        if (!steps.empty()) CheckDecode(steps);
      }
    }
  }
  for (const ModelSession& session : sessions) {
    EXPECT_THAT(
        Get(session.name).layer_token_counts(),
        ElementsAre(session.layers[0].tokens, session.layers[1].tokens));
  }
}

// Callers of many sessions at once, while others fork and delete: every answer
// is that of its own session.
TEST_P(SessionBackendTest, ConcurrentCallersGetTheirOwnAnswers) {
  std::vector<ModelSession> sessions;
  constexpr int kCallers = 4;
  constexpr int kSteps = 20;
  for (int i = 0; i < kCallers; ++i) {
    sessions.push_back(Create());
    Append(sessions.back(), 0, 10 * (i + 1));
  }
  std::vector<std::vector<v1::DecodeRequest>> steps(kCallers);
  std::vector<std::vector<ModelSession>> after(kCallers);
  for (int i = 0; i < kCallers; ++i) {
    for (int k = 0; k < kSteps; ++k) {
      steps[i].push_back(MakeDecode({{&sessions[i], 0, 1}}));
      after[i].push_back(sessions[i]);
    }
  }
  std::vector<std::thread> callers;
  for (int i = 0; i < kCallers; ++i) {
    callers.emplace_back([&, i] {
      const auto stub = v1::AttentionService::NewStub(Connect(tcp_address()));
      for (int k = 0; k < kSteps; ++k) {
        v1::DecodeResponse response;
        const grpc::Status status =
            stub->Decode(Context().get(), steps[i][k], &response);
        ASSERT_TRUE(status.ok()) << status.error_message();
        ASSERT_TRUE(
            CheckDecoded(steps[i][k], response, {{&after[i][k], 0, 1}}));
        v1::ForkSessionRequest fork;
        fork.set_name(sessions[i].name);
        v1::ForkSessionResponse forked;
        ASSERT_TRUE(stub->ForkSession(Context().get(), fork, &forked).ok());
        v1::DeleteSessionRequest request;
        request.set_name(forked.session().name());
        v1::DeleteSessionResponse deleted;
        ASSERT_TRUE(
            stub->DeleteSession(Context().get(), request, &deleted).ok());
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

// Sessions spread over devices; an answer is put together from all.
TEST_P(SessionBackendTest, OneRequestUsesSessionsOfAnyDevices) {
  std::vector<ModelSession> sessions;
  std::set<std::string> devices;
  for (int i = 0; i < 4; ++i) {
    sessions.push_back(Create());
    Append(sessions.back(), 0, 70);
    devices.insert(Get(sessions.back().name).device_name());
  }
  if (cuda_runtime_ != nullptr) {
    EXPECT_EQ(devices.size(), 2u);
  }
  for (int i = 0; i < 5; ++i) {
    CheckDecode({{&sessions[0], 0, 1},
                 {&sessions[1], 0, 3},
                 {&sessions[2], 1, 2},
                 {&sessions[3], 0, 1}});
  }
}

}  // namespace
}  // namespace attention::test
