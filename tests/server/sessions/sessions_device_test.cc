// Sessions on devices that compute: whatever sessions share, free and take over
// from each other, every answer is that of their own tokens.
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
    const size_t page_bytes = PageStride(PageBytes(kConfig));
    auto registry = SessionRegistry::Create(
        {.slab_bytes = 8 * page_bytes},
        {{&device(), device().page_pool(), kPageCount * page_bytes}}, &clock_,
        &engine().metrics());
    ASSERT_TRUE(registry.ok()) << registry.status();
    registry_ = *std::move(registry);
    device().SetKvCache(registry_->cache(0));
  }
  // The device lets go of the cache first.
  void TearDown() override {
    engine().DestroyDevice();
    registry_.reset();
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

  FakeClock clock_;
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

TEST_P(SessionsDeviceTest, SessionsThatComeForkAndGo) {
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

}  // namespace
}  // namespace attention::test
