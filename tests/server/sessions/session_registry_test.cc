// Names, owners, time, quotas and devices.
#include <limits>
#include <set>
#include <string>

#include "tests/server/sessions/sessions_fixture.h"

namespace attention {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAreArray;

class SessionRegistryTest : public SessionsTest {
 protected:
  void SetUp() override { MakeRegistry(); }
};

TEST_F(SessionRegistryTest, TellsWhatWasCreated) {
  SessionConfig config = MakeWindow(7, 3);
  config.layer_count = 2;
  const auto info = registry_->Create(
      kOwner, config, {.reserved_tokens = 9, .ttl = absl::Minutes(3)});
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_THAT(info->name, MatchesRegex("sessions/local\\.[0-9a-f]{32}"));
  EXPECT_EQ(info->config.window_left, 7);
  EXPECT_EQ(info->config.sink_tokens, 3);
  EXPECT_EQ(info->reserved_tokens, 9);
  EXPECT_EQ(info->ttl, absl::Minutes(3));
  EXPECT_EQ(info->create_time, clock_.Now());
  EXPECT_EQ(info->expire_time, clock_.Now() + absl::Minutes(3));
  EXPECT_THAT(info->layer_lengths, ElementsAre(0, 0));
  EXPECT_EQ(info->resident_bytes, 0);
  EXPECT_FALSE(info->is_lost);
  EXPECT_EQ(reader_.Value("attention_sessions", {{"device", "puppet:0"}}), 1);
}

TEST_F(SessionRegistryTest, NamesAreDifferent) {
  std::set<std::string> names;
  for (int i = 0; i < 1000; ++i) names.insert(Open());
  EXPECT_THAT(names, SizeIs(1000));
}

TEST_F(SessionRegistryTest, RefusesConfigurationsOutOfRange) {
  const auto refused = [&](auto change) {
    SessionConfig config = MakeConfig();
    change(config);
    return registry_->Create(kOwner, config, {}).status();
  };
  for (int layer_count : {0, -1, kMaxLayerCount + 1}) {
    EXPECT_THAT(refused([&](auto& c) { c.layer_count = layer_count; }),
                IsInvalid());
  }
  EXPECT_THAT(refused([](auto& c) { c.paged.heads.head_dim_qk = 257; }),
              IsInvalid());
  EXPECT_THAT(refused([](auto& c) {
                c.paged.heads.kv_head_count = 0;
                c.paged.heads.query_head_count = 0;
              }),
              IsInvalid());
  EXPECT_THAT(refused([](auto& c) { c.paged.page_tokens = 0; }), IsInvalid());
  EXPECT_THAT(refused([](auto& c) { c.key_scales = {1.0f}; }), IsInvalid());
  for (float scale : {0.0f, -1.0f, std::numeric_limits<float>::infinity(),
                      std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_THAT(refused([&](auto& c) {
                  c.paged.kv_data_type = KvDataType::kFloat8E4M3;
                  c.key_scales = {1.0f};
                  c.value_scales = {scale};
                }),
                IsInvalid());
  }
  EXPECT_EQ(Usage().session_count, 0);
}

TEST_F(SessionRegistryTest, OthersSessionsDoNotExist) {
  const std::string name = Open();
  ASSERT_EQ(Append(name, 5), absl::OkStatus());
  EXPECT_THAT(registry_->Get("other", name).status(), IsNotFound());
  EXPECT_THAT(registry_->Delete("other", name), IsNotFound());
  EXPECT_THAT(registry_->Renew("other", name, {}).status(), IsNotFound());
  EXPECT_THAT(registry_->Use("other", name, 0).status(), IsNotFound());
  EXPECT_THAT(registry_->Fork("other", name, {}).status(), IsNotFound());
  EXPECT_THAT(registry_->Truncate("other", name, 0).status(), IsNotFound());
  EXPECT_THAT(registry_->List("other", 10, "")->sessions, IsEmpty());
  EXPECT_THAT(registry_->List("", 10, "")->sessions, IsEmpty());
  EXPECT_EQ(Length(name), 5);
}

TEST_F(SessionRegistryTest, AnotherReplicasSessionIsSaidToBeThere) {
  const std::string name = Open();
  SessionRegistry::Options options;
  options.replica_name = "replica-7_b";
  MakeRegistry(160, 1, options);
  EXPECT_THAT(Open(), MatchesRegex("sessions/replica-7_b\\..*"));
  const absl::Status status = registry_->Get(kOwner, name).status();
  EXPECT_THAT(status,
              Fails(absl::StatusCode::kNotFound, error_reason::kWrongReplica));
  EXPECT_EQ(FactOf(status, error_fact::kReplica), "local");
  EXPECT_THAT(registry_->Use(kOwner, name, 0).status(),
              Fails(absl::StatusCode::kNotFound, error_reason::kWrongReplica));
}

// A server that was restarted has no sessions, and says so.
TEST_F(SessionRegistryTest, ARestartForgets) {
  const std::string name = Open();
  MakeRegistry();
  const absl::Status status = registry_->Get(kOwner, name).status();
  EXPECT_THAT(status, IsNotFound());
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("restart"));
}

TEST_F(SessionRegistryTest, RefusesNamesThatAreNone) {
  const std::string id(32, 'a');
  for (const std::string& name :
       {std::string(), std::string("sessions/"), id, "local." + id,
        "sessions/local" + id, std::string("sessions/local."),
        "sessions/." + id, "sessions/local." + id + "a",
        "sessions/local." + id.substr(1),
        "sessions/local." + std::string(32, 'A'),
        "sessions/local." + std::string(32, 'g'), "sessions/lo cal." + id,
        "sessions/lo/cal." + id, "sessions/" + std::string(64, 'r') + "." + id,
        "sessions/local.x." + id, "Sessions/local." + id,
        "sessions/local." + std::string(1, '\0') + id.substr(1),
        std::string(100'000, 'x')}) {
    const absl::Status status = registry_->Get(kOwner, name).status();
    EXPECT_THAT(status, IsInvalid()) << name.substr(0, 100);
    EXPECT_LT(status.message().size(), 1000u);
  }
  EXPECT_THAT(registry_->Get(kOwner, "sessions/local." + id).status(),
              IsNotFound());
  EXPECT_THAT(
      registry_->Get(kOwner, "sessions/" + std::string(63, 'r') + "." + id)
          .status(),
      Fails(absl::StatusCode::kNotFound, error_reason::kWrongReplica));
}

TEST_F(SessionRegistryTest, RefusesOptionsOutOfRange) {
  const auto refused = [&](auto change) {
    SessionRegistry::Options options;
    change(options);
    return SessionRegistry::Create(options, {}, &clock_, &metrics_).status();
  };
  for (const std::string& name : {std::string(), std::string("a.b"),
                                  std::string("a/b"), std::string(64, 'r')}) {
    EXPECT_THAT(refused([&](auto& o) { o.replica_name = name; }), IsInvalid());
  }
  EXPECT_THAT(refused([](auto& o) { o.max_session_count = 0; }), IsInvalid());
  EXPECT_THAT(refused([](auto& o) { o.max_owner_session_count = 0; }),
              IsInvalid());
  EXPECT_THAT(refused([](auto& o) { o.max_owner_tokens = 0; }), IsInvalid());
  EXPECT_THAT(refused([](auto& o) { o.slab_bytes = 0; }), IsInvalid());
  EXPECT_THAT(refused([](auto& o) { o.max_ttl = absl::ZeroDuration(); }),
              IsInvalid());
  EXPECT_THAT(refused([](auto& o) { o.max_ttl = absl::InfiniteDuration(); }),
              IsInvalid());
}

TEST_F(SessionRegistryTest, SessionsLiveAsLongAsTheyAreUsed) {
  const std::string used = Open(MakeConfig(), {.ttl = absl::Minutes(1)});
  const std::string idle = Open(MakeConfig(), {.ttl = absl::Minutes(1)});
  ASSERT_EQ(Append(idle, 5), absl::OkStatus());
  for (int i = 0; i < 3; ++i) {
    clock_.Advance(absl::Seconds(40));
    EXPECT_EQ(Append(used, 1), absl::OkStatus());
  }
  EXPECT_THAT(registry_->Get(kOwner, idle).status(), IsNotFound());
  EXPECT_THAT(registry_->Use(kOwner, idle, 0).status(), IsNotFound());
  EXPECT_THAT(registry_->Renew(kOwner, idle, {}).status(), IsNotFound());
  EXPECT_THAT(registry_->List(kOwner, 10, "")->sessions, SizeIs(1));
  EXPECT_EQ(Pages("used"), 3);
  EXPECT_EQ(registry_->ReleaseExpired(), 1);
  EXPECT_EQ(Pages("used"), 1);
  EXPECT_EQ(registry_->ReleaseExpired(), 0);
  EXPECT_EQ(
      reader_.Value("attention_session_events_total", {{"event", "expired"}}),
      1);
}

TEST_F(SessionRegistryTest, WhatExtendsASessionsLife) {
  const std::string name = Open(MakeConfig(), {.ttl = absl::Minutes(1)});
  const absl::Time start = clock_.Now();
  clock_.Advance(absl::Seconds(10));
  ASSERT_TRUE(registry_->Get(kOwner, name).ok());
  ASSERT_TRUE(registry_->List(kOwner, 10, "").ok());
  EXPECT_EQ(Info(name).expire_time, start + absl::Seconds(60));
  ASSERT_TRUE(registry_->Use(kOwner, name, 0).ok());
  EXPECT_EQ(Info(name).expire_time, start + absl::Seconds(70));
  clock_.Advance(absl::Seconds(10));
  const std::string fork = Fork(name, {.ttl = absl::Minutes(5)});
  EXPECT_EQ(Info(name).expire_time, start + absl::Seconds(80));
  EXPECT_EQ(Info(fork).expire_time, start + absl::Seconds(320));
  clock_.Advance(absl::Seconds(10));
  ASSERT_EQ(Cut(name, 0), absl::OkStatus());
  EXPECT_EQ(Info(name).expire_time, start + absl::Seconds(90));
  const auto renewed = registry_->Renew(kOwner, name, absl::Minutes(2));
  EXPECT_EQ(renewed->expire_time, start + absl::Seconds(150));
  EXPECT_EQ(renewed->ttl, absl::Minutes(2));
  clock_.Advance(absl::Seconds(10));
  EXPECT_EQ(registry_->Renew(kOwner, name, {})->expire_time,
            start + absl::Seconds(160));
}

TEST_F(SessionRegistryTest, TtlsAreBounded) {
  SessionRegistry::Options options;
  options.max_ttl = absl::Minutes(5);
  MakeRegistry(160, 1, options);
  const std::string name = Open(MakeConfig(), {.ttl = absl::Minutes(5)});
  for (absl::Duration ttl : {absl::ZeroDuration(), absl::Seconds(-1),
                             absl::Seconds(301), absl::InfiniteDuration()}) {
    EXPECT_THAT(registry_->Create(kOwner, MakeConfig(), {.ttl = ttl}).status(),
                IsInvalid());
    EXPECT_THAT(registry_->Renew(kOwner, name, ttl).status(), IsInvalid());
    EXPECT_THAT(registry_->Fork(kOwner, name, {.ttl = ttl}).status(),
                IsInvalid());
  }
}

TEST_F(SessionRegistryTest, LayersAreNumbered) {
  const std::string name = Open(MakeConfig(3));
  EXPECT_TRUE(registry_->Use(kOwner, name, 2).ok());
  for (int64_t layer : {int64_t{-1}, int64_t{3}, int64_t{1} << 32}) {
    EXPECT_THAT(registry_->Use(kOwner, name, layer).status(), IsInvalid());
  }
}

TEST_F(SessionRegistryTest, ListsPageByPage) {
  std::vector<std::string> names;
  for (int i = 0; i < 10; ++i) names.push_back(Open());
  for (int page_size : {1, 3, 5, 10, 1000}) {
    std::vector<std::string> listed;
    std::string token;
    do {
      const auto page = registry_->List(kOwner, page_size, token);
      ASSERT_TRUE(page.ok()) << page.status();
      EXPECT_LE(page->sessions.size(), static_cast<size_t>(page_size));
      for (const SessionInfo& info : page->sessions) {
        listed.push_back(info.name);
      }
      token = page->next_page_token;
    } while (!token.empty());
    EXPECT_THAT(listed, UnorderedElementsAreArray(names));
  }
  // A page is not upset by what is deleted meanwhile.
  const auto page = registry_->List(kOwner, 4, "");
  ASSERT_EQ(registry_->Delete(kOwner, page->sessions.back().name),
            absl::OkStatus());
  EXPECT_THAT(registry_->List(kOwner, 100, page->next_page_token)->sessions,
              SizeIs(6));
  EXPECT_THAT(registry_->List(kOwner, 0, "").status(), IsInvalid());
  EXPECT_THAT(registry_->List(kOwner, 1, "x").status(), IsInvalid());
}

TEST_F(SessionRegistryTest, BoundsSessions) {
  SessionRegistry::Options options;
  options.max_session_count = 3;
  options.max_owner_session_count = 2;
  MakeRegistry(160, 1, options);
  const std::string first = Open();
  Open(MakeConfig(), {.ttl = absl::Seconds(5)});
  EXPECT_THAT(registry_->Create(kOwner, MakeConfig(), {}).status(),
              IsOverQuota());
  EXPECT_THAT(registry_->Fork(kOwner, first, {}).status(), IsOverQuota());
  ASSERT_TRUE(registry_->Create("other", MakeConfig(), {}).ok());
  EXPECT_THAT(registry_->Create("third", MakeConfig(), {}).status(), IsFull());
  EXPECT_EQ(reader_.Value("attention_session_refusals_total",
                          {{"reason", "QUOTA_EXCEEDED"}}),
            2);
  // What has expired makes room at once.
  clock_.Advance(absl::Seconds(5));
  EXPECT_TRUE(registry_->Fork(kOwner, first, {}).ok());
  ASSERT_EQ(registry_->Delete(kOwner, first), absl::OkStatus());
  EXPECT_TRUE(registry_->Create("third", MakeConfig(), {}).ok());
}

TEST_F(SessionRegistryTest, BoundsTokensOfAnOwner) {
  SessionRegistry::Options options;
  options.max_owner_tokens = 40;
  MakeRegistry(160, 1, options);
  const std::string first = Open(MakeConfig(2), {.reserved_tokens = 10});
  const std::string second = Open();
  // 20 are reserved, whether or not they are there.
  EXPECT_EQ(Append(first, 10, 0), absl::OkStatus());
  EXPECT_EQ(Append(second, 20), absl::OkStatus());
  EXPECT_THAT(Append(second, 1), IsOverQuota());
  EXPECT_EQ(Append(first, 10, 1), absl::OkStatus());
  EXPECT_THAT(Append(first, 1, 1), IsOverQuota());
  EXPECT_EQ(Length(first, 1), 10);
  EXPECT_THAT(
      registry_->Create(kOwner, MakeConfig(), {.reserved_tokens = 1}).status(),
      IsOverQuota());
  EXPECT_THAT(registry_->Fork(kOwner, second, {}).status(), IsOverQuota());
  const auto other =
      registry_->Create("other", MakeConfig(), {.reserved_tokens = 40});
  EXPECT_TRUE(other.ok()) << other.status();
  // Cutting gives back, down to what is reserved.
  EXPECT_EQ(Cut(second, 5), absl::OkStatus());
  EXPECT_EQ(Cut(first, 0), absl::OkStatus());
  EXPECT_THAT(Append(second, 16), IsOverQuota());
  EXPECT_EQ(Append(second, 15), absl::OkStatus());
  ASSERT_EQ(registry_->Delete(kOwner, first), absl::OkStatus());
  EXPECT_TRUE(registry_->Fork(kOwner, second, {}).ok());
  EXPECT_EQ(Usage().resident_tokens, 40);
}

// A window takes of the quota what it keeps.
TEST_F(SessionRegistryTest, WindowsCountWhatTheyKeep) {
  SessionRegistry::Options options;
  options.max_owner_tokens = 12;
  MakeRegistry(160, 1, options);
  const std::string name = Open(MakeWindow(4));
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(Append(name, 1), absl::OkStatus()) << i;
  }
}

TEST_F(SessionRegistryTest, ChoosesTheDeviceWithTheFewestBytes) {
  MakeRegistry(/*page_count=*/160, /*device_count=*/3);
  const std::string a = Open(MakeConfig(), {.reserved_tokens = 40});
  const std::string b = Open(MakeConfig(), {.reserved_tokens = 80});
  const std::string c = Open(MakeConfig(), {.reserved_tokens = 20});
  const std::string d = Open();
  EXPECT_EQ(Info(a).device, 0);
  EXPECT_EQ(Info(b).device, 1);
  EXPECT_EQ(Info(c).device, 2);
  EXPECT_EQ(Info(d).device, 2);
  EXPECT_EQ(registry_->Use(kOwner, b, 0)->device, 1);
  EXPECT_EQ(Info(Fork(b)).device, 1);
  // One that fails gets no more.
  devices_[2]->SetHealth(absl::UnavailableError("broken"));
  EXPECT_EQ(Info(Open()).device, 0);
  devices_[0]->SetHealth(absl::UnavailableError("broken"));
  devices_[1]->SetHealth(absl::UnavailableError("broken"));
  EXPECT_THAT(
      registry_->Create(kOwner, MakeConfig(), {}).status(),
      Fails(absl::StatusCode::kUnavailable, error_reason::kDeviceFailed));
}

TEST_F(SessionRegistryTest, TakesAnotherDeviceWhenOneIsFull) {
  MakeRegistry(/*page_count=*/32, /*device_count=*/2);
  Open(MakeConfig(), {.reserved_tokens = 20 * 4});
  Open(MakeConfig(), {.reserved_tokens = 4 * 4});
  EXPECT_EQ(Info(Open(MakeConfig(), {.reserved_tokens = 28 * 4})).device, 1);
  EXPECT_EQ(Info(Open(MakeConfig(), {.reserved_tokens = 12 * 4})).device, 0);
  EXPECT_THAT(
      registry_->Create(kOwner, MakeConfig(), {.reserved_tokens = 1}).status(),
      IsFull());
}

TEST_F(SessionRegistryTest, AFullCacheMakesRoomOfWhatHasExpired) {
  MakeRegistry(/*page_count=*/16);
  Open(MakeConfig(), {.reserved_tokens = 64, .ttl = absl::Seconds(5)});
  EXPECT_THAT(
      registry_->Create(kOwner, MakeConfig(), {.reserved_tokens = 1}).status(),
      IsFull());
  clock_.Advance(absl::Seconds(5));
  Open(MakeConfig(), {.reserved_tokens = 64});
}

TEST_F(SessionRegistryTest, NothingIsLeftBehind) {
  const std::string name = Open(MakeConfig(2), {.reserved_tokens = 20});
  ASSERT_EQ(Append(name, 30), absl::OkStatus());
  const KvStep step = StepOf(Fork(name), 1);  // outlives the registry
  registry_.reset();
  EXPECT_EQ(PoolBytes(), 0u);
  EXPECT_FALSE(reader_.Value("attention_sessions", {{"device", "puppet:0"}})
                   .has_value());
}

}  // namespace
}  // namespace attention
