#include "client/cpp/sessions.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/cpp/client_fixture.h"
#include "tests/client/cpp/fake_session_server.h"

namespace attention {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr char kLost[] = "the connection broke";

std::vector<float> Floats(const std::string& bytes) {
  std::vector<float> floats(bytes.size() / sizeof(float));
  std::memcpy(floats.data(), bytes.data(), floats.size() * sizeof(float));
  return floats;
}

LayerTokens Tokens(int32_t layer, const std::vector<float>& values) {
  return {.layer = layer,
          .token_count = static_cast<int64_t>(values.size()),
          .key = values.data(),
          .value = values.data()};
}

DecodeRequest Step(std::vector<DecodeItem> items,
                   const std::vector<float>& query,
                   const std::vector<float>& value) {
  return {.items = std::move(items),
          .query = query.data(),
          .key = value.data(),
          .value = value.data(),
          .return_log_sum_exp = true};
}

// Loses the answers to the first calls of a method.
FakeSessionServer::Fault LoseAnswers(const std::string& lost_method,
                                     int count) {
  auto left = std::make_shared<std::atomic<int>>(count);
  return
      [=](grpc::ServerContext*, const std::string& method, bool has_happened) {
        return has_happened && method == lost_method && (*left)-- > 0
                   ? grpc::Status(grpc::StatusCode::UNAVAILABLE, kLost)
                   : grpc::Status::OK;
      };
}

class SessionsTest : public AttentionClientTest {
 protected:
  std::unique_ptr<Session> Create(Client& client, int32_t layer_count = 2) {
    auto session = client.sessions().Create({.data_type = DataType::kFloat32,
                                             .query_head_count = 1,
                                             .kv_head_count = 1,
                                             .head_dim_qk = 1,
                                             .head_dim_v = 1,
                                             .layer_count = layer_count,
                                             .window_left = 7,
                                             .sink_token_count = 3,
                                             .split_policy =
                                                 SplitPolicy::kBalanced,
                                             .reserved_token_count = 5,
                                             .ttl = absl::Milliseconds(1500)});
    EXPECT_TRUE(session.ok()) << session.status();
    return *std::move(session);
  }
};

TEST_F(SessionsTest, AppendsAttendsAndCounts) {
  FakeSessionServer server;
  const auto client = Connect(server.target());
  const auto session = Create(*client);
  EXPECT_EQ(session->Append(Tokens(1, {1, 2, 3})), absl::OkStatus());
  EXPECT_EQ(session->token_count(0), 0);
  EXPECT_EQ(session->token_count(1), 3);
  const std::vector<float> query = {2, 3};
  const auto result = session->Attend({.layer = 1,
                                       .token_count = 2,
                                       .query = query.data(),
                                       .return_log_sum_exp = true});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(Floats(result->output), ElementsAre(6, 18));
  EXPECT_THAT(result->output_shape, ElementsAre(2, 1, 1));
  EXPECT_THAT(Floats(result->log_sum_exp), ElementsAre(2, 3));
  EXPECT_THAT(result->log_sum_exp_shape, ElementsAre(2, 1));
}

TEST_F(SessionsTest, OpensWhatWasCreated) {
  FakeSessionServer server;
  const auto client = Connect(server.target());
  const auto session = Create(*client);
  EXPECT_EQ(session->Append(Tokens(0, {1, 2})), absl::OkStatus());
  const auto opened = client->sessions().Open(session->name());
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ((*opened)->name(), session->name());
  EXPECT_EQ((*opened)->token_count(0), 2);
  const SessionOptions& options = (*opened)->options();
  EXPECT_EQ(options.data_type, DataType::kFloat32);
  EXPECT_EQ(options.mask, MaskKind::kCausalBottomRight);
  EXPECT_EQ(options.layer_count, 2);
  EXPECT_EQ(options.window_left, 7);
  EXPECT_EQ(options.sink_token_count, 3);
  EXPECT_EQ(options.split_policy, SplitPolicy::kBalanced);
  EXPECT_EQ(options.reserved_token_count, 5);
  EXPECT_EQ(options.ttl, absl::Milliseconds(1500));
}

TEST_F(SessionsTest, ListsAllPages) {
  FakeSessionServer server;
  const auto client = Connect(server.target());
  EXPECT_THAT(*client->sessions().List(), IsEmpty());
  const auto a = Create(*client), b = Create(*client), c = Create(*client);
  const auto sessions = client->sessions().List();
  ASSERT_TRUE(sessions.ok()) << sessions.status();
  ASSERT_THAT(*sessions, SizeIs(3));
  EXPECT_EQ((*sessions)[0].name(), a->name());
  EXPECT_EQ((*sessions)[2].name(), c->name());
}

TEST_F(SessionsTest, CallsNameTheirTenant) {
  FakeSessionServer server;
  const auto client = Connect(server.target(), {.tenant = "somebody"});
  const auto session = Create(*client);
  EXPECT_EQ(server.tenant(), "somebody");
  const std::vector<float> many(1 << 18);
  EXPECT_EQ(session->Append(Tokens(0, many)), absl::OkStatus());
  EXPECT_THAT(server.calls(), Contains("StreamAppendKeysValues"));
  EXPECT_EQ(server.tenant(), "somebody");
  EXPECT_EQ(
      Client::Create({.target = "a:1", .tenant = "two\nlines"}).status().code(),
      absl::StatusCode::kInvalidArgument);
}

TEST_F(SessionsTest, AnAppendWhoseAnswerWasLostHappensOnce) {
  FakeSessionServer server(LoseAnswers("AppendKeysValues", 2));
  const auto client = Connect(server.target());
  const auto session = Create(*client);
  EXPECT_EQ(session->Append(Tokens(0, {1, 2})), absl::OkStatus());
  EXPECT_EQ(session->Append(Tokens(0, {3})), absl::OkStatus());
  EXPECT_THAT(server.Values(session->name(), 0), ElementsAre(1, 2, 3));
  EXPECT_EQ(session->token_count(0), 3);
}

TEST_F(SessionsTest, AnAppendThatFailedMayBeRepeated) {
  FakeSessionServer server(LoseAnswers("AppendKeysValues", 1));
  const auto client = Connect(server.target(), {.max_attempts = 1});
  const auto session = Create(*client);
  EXPECT_EQ(session->Append(Tokens(0, {1, 2})).code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(session->token_count(0), 0);
  EXPECT_EQ(session->Append(Tokens(0, {1, 2})), absl::OkStatus());
  EXPECT_THAT(server.Values(session->name(), 0), ElementsAre(1, 2));
  EXPECT_EQ(session->token_count(0), 2);
}

TEST_F(SessionsTest, ASecondWriterIsNoticed) {
  FakeSessionServer server;
  const auto client = Connect(server.target());
  const auto session = Create(*client);
  const auto other = client->sessions().Open(session->name());
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ((*other)->Append(Tokens(0, {1, 2})), absl::OkStatus());
  const absl::Status status = session->Append(Tokens(0, {7}));
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ErrorFact(status, "token_count"), "2");
  EXPECT_EQ(session->token_count(0), 0);
  EXPECT_TRUE(session->Refresh().ok());
  EXPECT_EQ(session->token_count(0), 2);
  EXPECT_EQ(session->Append(Tokens(0, {7})), absl::OkStatus());
  EXPECT_THAT(server.Values(session->name(), 0), ElementsAre(1, 2, 7));
}

TEST_F(SessionsTest, StreamsLargePrefixesOfManyLayers) {
  FakeSessionServer server;
  const auto client = Connect(server.target());
  const auto session = Create(*client);
  std::vector<float> first(700'000), second(300'000);
  for (size_t i = 0; i < first.size(); ++i) first[i] = static_cast<float>(i);
  const std::vector<float> rest = {1, 2};
  const LayerTokens parts[] = {Tokens(0, first), Tokens(1, second),
                               Tokens(0, rest)};
  EXPECT_EQ(session->Append(parts), absl::OkStatus());
  EXPECT_EQ(session->token_count(0), 700'002);
  EXPECT_EQ(session->token_count(1), 300'000);
  first.insert(first.end(), rest.begin(), rest.end());
  EXPECT_TRUE(server.Values(session->name(), 0) == first);
  EXPECT_TRUE(server.Values(session->name(), 1) == second);
  EXPECT_THAT(server.calls(), Not(Contains("AppendKeysValues")));
}

TEST_F(SessionsTest, AStreamThatBreaksGoesOnWhereItWas) {
  // Breaks streams now before and now after a message is appended.
  std::atomic<int> messages = 0;
  FakeSessionServer server(
      [&](grpc::ServerContext*, const std::string& method, bool has_happened) {
        return method == "StreamAppendKeysValues" && ++messages % 5 == 0
                   ? grpc::Status(grpc::StatusCode::UNAVAILABLE,
                                  has_happened ? "after" : "before")
                   : grpc::Status::OK;
      });
  // More breaks than attempts: progress does not count.
  const auto client = Connect(server.target(), {.max_attempts = 2});
  const auto session = Create(*client);
  std::vector<float> values(3'000'000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  EXPECT_EQ(session->Append(Tokens(1, values)), absl::OkStatus());
  EXPECT_TRUE(server.Values(session->name(), 1) == values);
  EXPECT_THAT(clock_.delays(), SizeIs(testing::Ge(3)));
}

TEST_F(SessionsTest, AStreamedAppendThatFailedMayBeRepeated) {
  std::atomic<bool> broken = true;
  std::atomic<int> messages = 0;
  FakeSessionServer server(
      [&](grpc::ServerContext*, const std::string& method, bool) {
        return method == "StreamAppendKeysValues" && broken && ++messages > 4
                   ? grpc::Status(grpc::StatusCode::INTERNAL, "fault")
                   : grpc::Status::OK;
      });
  const auto client = Connect(server.target());
  const auto session = Create(*client);
  std::vector<float> values(1'000'000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  EXPECT_EQ(session->Append(Tokens(0, values)).code(),
            absl::StatusCode::kInternal);
  EXPECT_EQ(session->token_count(0), 0);
  EXPECT_THAT(server.Values(session->name(), 0), SizeIs(2 << 18));
  broken = false;
  EXPECT_EQ(session->Append(Tokens(0, values)), absl::OkStatus());
  EXPECT_TRUE(server.Values(session->name(), 0) == values);
}

TEST_F(SessionsTest, DecodesManySessionsInOneCall) {
  FakeSessionServer server;
  const auto client = Connect(server.target());
  const auto a = Create(*client), b = Create(*client);
  EXPECT_EQ(a->Append(Tokens(1, {10})), absl::OkStatus());
  const std::vector<float> query = {1, 1, 2}, value = {5, 6, 7};
  const auto result = client->sessions().Decode(
      Step({{a.get(), 1, 2}, {b.get(), 0}}, query, value));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->statuses,
              ElementsAre(absl::OkStatus(), absl::OkStatus()));
  EXPECT_THAT(Floats(result->output), ElementsAre(15, 21, 14));
  EXPECT_THAT(Floats(result->log_sum_exp), ElementsAre(2, 3, 1));
  EXPECT_EQ(a->token_count(1), 3);
  EXPECT_EQ(b->token_count(0), 1);
}

TEST_F(SessionsTest, OneItemsErrorIsItsOwn) {
  FakeSessionServer server;
  const auto client = Connect(server.target());
  const auto a = Create(*client), b = Create(*client);
  EXPECT_EQ(a->Delete(), absl::OkStatus());
  const std::vector<float> query = {1, 2}, value = {5, 6};
  const auto result = client->sessions().Decode(
      Step({{a.get(), 0}, {b.get(), 0}}, query, value));
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_THAT(result->statuses, SizeIs(2));
  EXPECT_EQ(result->statuses[0].code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(IsSessionGone(result->statuses[0]));
  EXPECT_EQ(result->statuses[1], absl::OkStatus());
  EXPECT_THAT(Floats(result->output), ElementsAre(0, 12));
  EXPECT_EQ(a->token_count(0), 0);
}

TEST_F(SessionsTest, AStepWhoseAnswerWasLostIsAttendedTo) {
  FakeSessionServer server(LoseAnswers("Decode", 1));
  const auto client = Connect(server.target());
  const auto a = Create(*client), b = Create(*client);
  const std::vector<float> query = {1, 2, 3}, value = {5, 6, 7};
  const auto result = client->sessions().Decode(
      Step({{a.get(), 0, 2}, {b.get(), 1}}, query, value));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->statuses, Each(absl::OkStatus()));
  EXPECT_THAT(Floats(result->output), ElementsAre(5, 22, 21));
  EXPECT_THAT(Floats(result->log_sum_exp), ElementsAre(1, 2, 1));
  EXPECT_THAT(server.Values(a->name(), 0), ElementsAre(5, 6));
  EXPECT_EQ(a->token_count(0), 2);
  EXPECT_EQ(b->token_count(1), 1);
}

TEST_F(SessionsTest, OnlyStepsThatAreThereAreAttendedTo) {
  FakeSessionServer server;
  const auto client = Connect(server.target(), {.max_attempts = 1});
  const auto a = Create(*client), b = Create(*client);
  // Another writer's tokens are no answer of this one's.
  const auto other = client->sessions().Open(a->name());
  EXPECT_EQ((*other)->Append(Tokens(0, {1, 2})), absl::OkStatus());
  const std::vector<float> query = {1, 1}, value = {5, 6};
  const auto result = client->sessions().Decode(
      Step({{a.get(), 0}, {b.get(), 0}}, query, value));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(ErrorReason(result->statuses[0]), "POSITION_TAKEN");
  EXPECT_EQ(result->statuses[1], absl::OkStatus());
}

TEST_F(SessionsTest, RequestsWithoutItemsOrSessionsAreRefused) {
  FakeSessionServer server;
  const auto client = Connect(server.target());
  EXPECT_EQ(client->sessions().Decode({}).status().message(),
            "a request must have at least one item");
  EXPECT_EQ(client->sessions().Decode({.items = {{}}}).status().message(),
            "items[0] must have a session");
  const auto session = Create(*client);
  EXPECT_THAT(
      std::string(client->sessions()
                      .Decode({.items = {{session.get(), 0, 1 << 30},
                                         {session.get(), 1, int64_t{1} << 62}}})
                      .status()
                      .message()),
      HasSubstr("a request must be at most 2147483647 bytes"));
}

TEST_F(SessionsTest, ForksTruncatesRenewsAndDeletes) {
  FakeSessionServer server;
  const auto client = Connect(server.target());
  const auto session = Create(*client, 1);
  EXPECT_EQ(session->Append(Tokens(0, {1, 2, 3, 4})), absl::OkStatus());
  const auto fork = session->Fork({.token_count = 2});
  ASSERT_TRUE(fork.ok()) << fork.status();
  EXPECT_NE((*fork)->name(), session->name());
  EXPECT_EQ((*fork)->token_count(0), 2);
  EXPECT_EQ((*fork)->options().layer_count, 1);
  EXPECT_EQ((*fork)->Append(Tokens(0, {9})), absl::OkStatus());
  EXPECT_THAT(server.Values((*fork)->name(), 0), ElementsAre(1, 2, 9));

  EXPECT_EQ(session->Truncate(3), absl::OkStatus());
  EXPECT_EQ(session->token_count(0), 3);
  EXPECT_EQ(session->Append(Tokens(0, {8})), absl::OkStatus());
  EXPECT_THAT(server.Values(session->name(), 0), ElementsAre(1, 2, 3, 8));

  EXPECT_EQ(session->Renew(absl::Seconds(3)), absl::OkStatus());
  EXPECT_EQ(session->Refresh()->ttl().seconds(), 3);

  EXPECT_EQ(session->Delete(), absl::OkStatus());
  EXPECT_EQ(session->Delete(), absl::OkStatus());
  EXPECT_EQ(session->Refresh().status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SessionsTest, ASessionThatIsGoneIsRebuilt) {
  FakeSessionServer server;
  const auto client = Connect(server.target());
  const auto session = Create(*client);
  const std::vector<float> history = {1, 2}, query = {1}, value = {3};
  EXPECT_EQ(session->Append(Tokens(0, history)), absl::OkStatus());
  const std::string old_name = session->name();
  server.ForgetSessions();

  const DecodeRequest step = Step({{session.get(), 0}}, query, value);
  auto result = client->sessions().Decode(step);
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_TRUE(IsSessionGone(result->statuses[0])) << result->statuses[0];
  const LayerTokens parts[] = {Tokens(0, history)};
  EXPECT_EQ(session->Rebuild(parts), absl::OkStatus());
  EXPECT_NE(session->name(), old_name);
  result = client->sessions().Decode(step);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->statuses[0], absl::OkStatus());
  EXPECT_THAT(Floats(result->output), ElementsAre(6));
  EXPECT_EQ(session->Refresh()->reserved_token_count(), 5);
}

TEST_F(SessionsTest, ErrorsTellWhetherASessionIsGone) {
  FakeSessionServer server(
      [](grpc::ServerContext*, const std::string& method, bool) {
        return method == "AppendKeysValues"
                   ? grpc::Status(grpc::StatusCode::ABORTED, "no reason")
                   : grpc::Status::OK;
      });
  const auto client = Connect(server.target());
  const auto session = Create(*client);
  EXPECT_FALSE(IsSessionGone(session->Append(Tokens(0, {1}))));
  EXPECT_FALSE(IsSessionGone(absl::OkStatus()));
}

}  // namespace
}  // namespace attention
