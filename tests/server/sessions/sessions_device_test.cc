// Sessions on devices that compute: whatever sessions share, free and take over
// from each other, every answer is that of their own tokens.
#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "server/sessions/session_registry.h"
#include "tests/server/engine/engine_fixture.h"
#include "tests/server/engine/resident_test_support.h"
#include "tests/support/fake_clock.h"

namespace attention::test {
namespace {

constexpr char kOwner[] = "owner";
constexpr int64_t kPageTokens = 8;
constexpr PagedConfig kConfig = {
    .heads = {.data_type = DataType::kBFloat16,
              .head_dim_qk = 40,
              .head_dim_v = 24,
              .query_head_count = 4,
              .kv_head_count = 2,
              .mask = MaskKind::kCausalBottomRight},
    .page_tokens = kPageTokens};
constexpr int64_t kPageCount = 64;

class SessionsDeviceTest : public EngineTest {
 protected:
  struct Session {
    std::string name;
    int64_t window_left = kUnlimitedWindow;
    TestLayer layer;
  };

  void SetUp() override {
    EngineTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    MakeRegistry(kPageCount, 0);
  }
  void MakeRegistry(int64_t page_count, int64_t spill_page_count) {
    registry_.reset();
    next_number_ = 0;
    const size_t page_bytes = PageStride(PageBytes(kConfig));
    spill_pool_ = std::make_unique<MemoryPool>(
        MemoryPool::Options{.name = "spill", .budget_bytes = size_t{1} << 30},
        device().MakeSpillAllocator());
    auto registry = SessionRegistry::Create(
        {.slab_bytes = 8 * page_bytes},
        {{.device = &device(),
          .pool = device().page_pool(),
          .budget_bytes = page_count * page_bytes,
          .spill_pool = spill_pool_.get(),
          .spill_budget_bytes = spill_page_count * page_bytes}},
        &clock_, &engine().metrics());
    ASSERT_TRUE(registry.ok()) << registry.status();
    registry_ = *std::move(registry);
    device().SetKvCache(registry_->cache(0));
  }
  // The device lets go of the cache first.
  void TearDown() override {
    engine().DestroyDevice();
    registry_.reset();
    spill_pool_.reset();
  }

  std::unique_ptr<Session> Open(int64_t window_left = kUnlimitedWindow) {
    auto info = registry_->Create(
        kOwner, {.paged = kConfig, .window_left = window_left}, {});
    EXPECT_TRUE(info.ok()) << info.status();
    auto session = std::make_unique<Session>();
    session->name = info->name;
    session->window_left = window_left;
    session->layer.layer = registry_->Use(kOwner, info->name, 0)->layer;
    return session;
  }

  // Of the first `position` tokens.
  std::unique_ptr<Session> Fork(const Session& origin, int64_t position) {
    auto info = registry_->Fork(kOwner, origin.name, {.position = position});
    EXPECT_TRUE(info.ok()) << info.status();
    auto session = std::make_unique<Session>();
    session->name = info->name;
    session->window_left = origin.window_left;
    session->layer =
        origin.layer.ForkedTo(registry_->Use(kOwner, info->name, 0)->layer);
    CutLayer(session->layer, position);
    return session;
  }

  static void CutLayer(TestLayer& layer, int64_t position) {
    const HeadConfig& heads = kConfig.heads;
    const int64_t bytes =
        position * heads.kv_head_count * ElementBytes(heads.data_type);
    layer.keys.resize(bytes * heads.head_dim_qk);
    layer.values.resize(bytes * heads.head_dim_v);
    layer.tokens = position;
  }

  void Delete(const Session& session) {
    EXPECT_EQ(registry_->Delete(kOwner, session.name), absl::OkStatus());
  }

  std::unique_ptr<ResidentRequest> Request(Session& session, int64_t append,
                                           int64_t queries,
                                           bool is_poison = false) {
    return std::make_unique<ResidentRequest>(
        ResidentSpec{.config = kConfig,
                     .steps = {{.layer = &session.layer,
                                .append = append,
                                .queries = queries}},
                     .log_sum_exp = true,
                     .window_left = session.window_left,
                     .is_poison = is_poison,
                     .seed = ++seed_});
  }

  // Operations of all kinds, then steps of all sessions, in one batch.
  void ComeForkAndGo();

  using Requests = std::vector<std::unique_ptr<ResidentRequest>>;
  void Run(Requests& requests) {
    if (requests.empty()) return;
    RunAndWait(device(), MakeResidentBatch(next_number_++, requests));
  }
  void ExpectRight(Requests requests) {
    Run(requests);
    for (const auto& request : requests) {
      EXPECT_TRUE(request->AnsweredRight());
    }
  }

  double MovedPages(const std::string& direction) const {
    return engine().Metric("attention_session_moved_pages_total", "direction",
                           direction);
  }

  FakeClock clock_;
  std::unique_ptr<MemoryPool> spill_pool_;
  std::unique_ptr<SessionRegistry> registry_;
  uint64_t next_number_ = 0;
  uint64_t seed_ = testing::UnitTest::GetInstance()->random_seed() * 1'000'000;
};
INSTANTIATE_FOR_ENGINES(SessionsDeviceTest);

// All memory is full of what would spoil every sum that touches it, when other
// sessions get it.
TEST_P(SessionsDeviceTest, FreedPagesAreNeverReadByOthers) {
  for (int round = 0; round < 3; ++round) {
    auto poison = Open();
    Requests fill;
    fill.push_back(Request(*poison, kPageCount * kPageTokens, 0, true));
    Run(fill);
    ASSERT_TRUE(fill[0]->AnsweredRight());
    Delete(*poison);
    std::vector<std::unique_ptr<Session>> sessions;
    for (int i = 0; i < 8; ++i) {
      sessions.push_back(Open(i % 2 == 0 ? kUnlimitedWindow : 5));
    }
    for (int step = 0; step < 12; ++step) {
      Requests requests;
      for (auto& session : sessions) {
        requests.push_back(Request(*session, 1 + step % 3, 1 + step % 3));
      }
      ExpectRight(std::move(requests));
    }
    for (auto& session : sessions) Delete(*session);
  }
}

// The same with memory of the host that has been full of it as well.
TEST_P(SessionsDeviceTest, FreedPlacesOnTheHostAreNeverReadByOthers) {
  MakeRegistry(/*page_count=*/16, /*spill_page_count=*/56);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::unique_ptr<Session>> sessions;
    const double spilled = MovedPages("spill");
    for (int i = 0; i < 4; ++i) {
      sessions.push_back(Open());
      Requests fill;
      fill.push_back(Request(*sessions.back(), 16 * kPageTokens, 0, true));
      Run(fill);
      ASSERT_TRUE(fill[0]->AnsweredRight());
    }
    EXPECT_EQ(MovedPages("spill") - spilled, 48);
    for (auto& session : sessions) Delete(*session);
    sessions.clear();
    for (int i = 0; i < 8; ++i) {
      sessions.push_back(Open(i % 2 == 0 ? kUnlimitedWindow : 5));
    }
    for (int step = 0; step < 12; ++step) {
      for (auto& session : sessions) {
        Requests requests;
        requests.push_back(Request(*session, 1 + step % 4, 1 + step % 4));
        ExpectRight(std::move(requests));
      }
    }
    for (auto& session : sessions) Delete(*session);
  }
}

// What comes back is what went, to the bit.
TEST_P(SessionsDeviceTest, SpilledSessionsAnswerAsBefore) {
  MakeRegistry(/*page_count=*/16, /*spill_page_count=*/32);
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<std::string> answers;
  // With the same queries each time.
  const auto look = [&](int i) {
    auto request = std::make_unique<ResidentRequest>(
        ResidentSpec{.config = kConfig,
                     .steps = {{.layer = &sessions[i]->layer, .queries = 5}},
                     .seed = 100u + i});
    Requests requests;
    requests.push_back(std::move(request));
    Run(requests);
    EXPECT_TRUE(requests[0]->AnsweredRight());
    const Block& output = requests[0]->Wait()->output;
    return std::string(static_cast<const char*>(output.data()), output.size());
  };
  for (int i = 0; i < 4; ++i) {
    sessions.push_back(Open());
    Requests requests;
    requests.push_back(Request(*sessions[i], 10 * kPageTokens - i, 1));
    ExpectRight(std::move(requests));
    answers.push_back(look(i));
  }
  EXPECT_EQ(MovedPages("spill"), 24);
  for (int round = 1; round <= 3; ++round) {
    for (int i = 0; i < 4; ++i) EXPECT_EQ(look(i), answers[i]) << i;
    EXPECT_EQ(MovedPages("restore"), round * 40);
  }
}

// Steps of one request, and of several, whose sessions are not on the device
// together.
TEST_P(SessionsDeviceTest, ABatchThatDoesNotFitIsSeveralLaunches) {
  MakeRegistry(/*page_count=*/16, /*spill_page_count=*/64);
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<StepSpec> steps;
  for (int i = 0; i < 6; ++i) {
    sessions.push_back(Open());
    steps.push_back(
        {.layer = &sessions[i]->layer, .append = 59, .queries = 1 + i});
  }
  for (int round = 0; round < 3; ++round) {
    Requests requests;
    for (int i = 0; i < 3; ++i) {
      for (StepSpec& step : steps) step.append = round == 0 && i == 0 ? 59 : 1;
      // One that fails, in the last launch.
      steps.push_back({.layer = &sessions[5]->layer,
                       .append = 1,
                       .queries = 1,
                       .expected_position = 7,
                       .code = absl::StatusCode::kAlreadyExists});
      requests.push_back(
          std::make_unique<ResidentRequest>(ResidentSpec{.config = kConfig,
                                                         .steps = steps,
                                                         .log_sum_exp = true,
                                                         .seed = ++seed_}));
      steps.pop_back();
      std::reverse(steps.begin(), steps.end());
    }
    ExpectRight(std::move(requests));
  }
  EXPECT_GT(MovedPages("restore"), 100);
}

TEST_P(SessionsDeviceTest, SessionsThatCannotBeCopiedAreLost) {
  FakeCudaRuntime* const cuda = engine().fake_cuda();
  if (cuda == nullptr) GTEST_SKIP() << "copies do not fail on demand";
  MakeRegistry(/*page_count=*/16, /*spill_page_count=*/64);
  auto first = Open();
  auto second = Open();
  Requests requests;
  requests.push_back(Request(*first, 16 * kPageTokens, 1));
  ExpectRight(std::exchange(requests, {}));
  cuda->FailCall(FakeCudaRuntime::Call::kCopyToHost, 1, /*sticky=*/false);
  requests.push_back(Request(*second, kPageTokens, 1));
  Run(requests);
  EXPECT_FALSE(requests[0]->Wait().ok());
  for (const auto* session : {&first, &second}) {
    EXPECT_TRUE(registry_->Get(kOwner, (*session)->name)->is_lost);
    Delete(**session);
  }
  auto third = Open();
  requests.clear();
  requests.push_back(Request(*third, 16 * kPageTokens, 1));
  ExpectRight(std::move(requests));
}

TEST_P(SessionsDeviceTest, ForksContinueApart) {
  auto prompt = Open();
  Requests prefill;
  prefill.push_back(Request(*prompt, 27, 27));
  ExpectRight(std::move(prefill));
  std::vector<std::unique_ptr<Session>> forks;
  for (int64_t position : {0, 1, 8, 15, 24, 27, 27}) {
    forks.push_back(Fork(*prompt, position));
  }
  for (int step = 0; step < 10; ++step) {
    Requests requests;
    requests.push_back(Request(*prompt, 1, 1));
    for (auto& fork : forks) requests.push_back(Request(*fork, 1, 1));
    ExpectRight(std::move(requests));
  }
}

// Drafts of several tokens, of which some are rejected.
TEST_P(SessionsDeviceTest, RejectedDraftsLeaveNoTrace) {
  for (int64_t window_left : {kUnlimitedWindow, int64_t{12}}) {
    auto session = Open(window_left);
    for (int step = 0; step < 30; ++step) {
      Requests requests;
      requests.push_back(Request(*session, 7, 7));
      ExpectRight(std::move(requests));
      const int64_t position = session->layer.tokens - step % 8;
      ASSERT_TRUE(registry_->Truncate(kOwner, session->name, position).ok());
      CutLayer(session->layer, position);
    }
  }
}

void SessionsDeviceTest::ComeForkAndGo() {
  std::mt19937 random(testing::UnitTest::GetInstance()->random_seed() + 1u);
  SCOPED_TRACE(testing::UnitTest::GetInstance()->random_seed());
  std::vector<std::unique_ptr<Session>> sessions;
  for (int round = 0; round < 150; ++round) {
    if (sessions.size() < 3) sessions.push_back(Open());
    const size_t index = random() % sessions.size();
    Session& any = *sessions[index];
    switch (random() % 4) {
      case 0:
        if (sessions.size() < 8) {
          sessions.push_back(Fork(any, random() % (any.layer.tokens + 1)));
        }
        break;
      case 1: {
        const int64_t position = random() % (any.layer.tokens + 1);
        ASSERT_TRUE(registry_->Truncate(kOwner, any.name, position).ok());
        CutLayer(any.layer, position);
        break;
      }
      case 2:
        Delete(any);
        sessions.erase(sessions.begin() + index);
        break;
      default:
        sessions.push_back(Open());
    }
    Requests requests;
    for (auto& session : sessions) {
      // Some 30 tokens at most, so that all fit.
      const int64_t append = session->layer.tokens > 24 ? 0 : random() % 6;
      requests.push_back(Request(*session, append, random() % 4));
    }
    ExpectRight(std::move(requests));
    if (HasFailure()) return;
    while (sessions.size() > 10) {
      Delete(*sessions.back());
      sessions.pop_back();
    }
  }
}

TEST_P(SessionsDeviceTest, SessionsThatComeForkAndGo) { ComeForkAndGo(); }

TEST_P(SessionsDeviceTest, SessionsThatComeForkAndGoThroughTheHost) {
  MakeRegistry(/*page_count=*/16, /*spill_page_count=*/64);
  ComeForkAndGo();
  EXPECT_GT(MovedPages("restore"), 100);
}

}  // namespace
}  // namespace attention::test
