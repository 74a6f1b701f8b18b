// The life of sessions, over real connections: order, retries, owners, time,
// quotas, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/server/lifecycle/session_calls_fixture.h"

namespace attention::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

void SetMalformed(google::protobuf::Duration& duration) {
  duration.set_seconds(5);
  duration.set_nanos(1'000'000'000);
}

TEST_F(SessionCallsTest, ItemsOfOneSessionHappenInOrder) {
  StartSessions();
  ModelSession session = Create();
  // The first item does not see what the second one appends.
  const std::vector<Step> one = {{&session, 0, 1}};
  const v1::DecodeRequest first = MakeDecode(one);
  const ModelSession after_first = session;
  const v1::DecodeRequest second = MakeDecode(one);
  v1::DecodeRequest both = first;
  both.MergeFrom(second);
  both.set_query(first.query() + second.query());
  both.set_key(first.key() + second.key());
  both.set_value(first.value() + second.value());
  v1::DecodeResponse response;
  const grpc::Status status = stub().Decode(Context().get(), both, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.item_errors_size(), 0) << response.DebugString();
  const size_t half = response.output().size() / 2;
  const size_t log_half = response.log_sum_exp().size() / 2;
  EXPECT_TRUE(Check(after_first, 0, first.query(),
                    absl::string_view(response.output()).substr(0, half),
                    absl::string_view(response.log_sum_exp()).substr(0, log_half)));
  EXPECT_TRUE(Check(session, 0, second.query(),
                    absl::string_view(response.output()).substr(half),
                    absl::string_view(response.log_sum_exp()).substr(log_half)));
}

TEST_F(SessionCallsTest, ARetryAppendsOnce) {
  StartSessions();
  ModelSession session = Create();
  Append(session, 0, 10);
  const v1::AppendKeysValuesRequest request = MakeAppend(session, 0, 5);
  ASSERT_TRUE(Append(request).ok());
  const grpc::Status again = Append(request);
  EXPECT_TRUE(Failed(again, Code::ALREADY_EXISTS, "POSITION_TAKEN"));
  EXPECT_EQ(ErrorInfoOf(again).metadata().at("token_count"), "15");
  v1::AppendKeysValuesRequest gap = request;
  gap.set_expected_position(16);
  const grpc::Status early = Append(gap);
  EXPECT_TRUE(Failed(early, Code::OUT_OF_RANGE, "POSITION_GAP"));
  EXPECT_EQ(ErrorInfoOf(early).metadata().at("token_count"), "15");
  EXPECT_EQ(Get(session.name).layer_token_counts(0), 15);
  CheckAttend(session, 0, 1);

  // An item fails alone, and leaves its layer as it is.
  ModelSession other = Create();
  v1::DecodeRequest decode = MakeDecode({{&session, 0, 1}, {&other, 0, 1}});
  decode.mutable_items(0)->set_expected_position(3);
  Cut(session, 15);
  v1::DecodeResponse response;
  ASSERT_TRUE(stub().Decode(Context().get(), decode, &response).ok());
  ASSERT_EQ(response.item_errors_size(), 1);
  EXPECT_EQ(response.item_errors(0).item_index(), 0);
  EXPECT_EQ(response.item_errors(0).error().reason(), "POSITION_TAKEN");
  EXPECT_EQ(response.item_errors(0).error().code(), Code::ALREADY_EXISTS);
  const size_t half = response.output().size() / 2;
  EXPECT_EQ(response.output().substr(0, half), std::string(half, '\0'));
  EXPECT_TRUE(Check(other, 0, decode.query().substr(half),
                    response.output().substr(half),
                    response.log_sum_exp().substr(kQueryHeads * sizeof(float))));
  CheckAttend(session, 0, 1);
}

TEST_F(SessionCallsTest, AForkSharesMemory) {
  StartSessions();
  ModelSession session = Create();
  Append(session, 0, 100);
  EXPECT_EQ(Get(session.name).resident_bytes(), 2 * 64 * 128);
  EXPECT_EQ(Get(session.name).shared_bytes(), 0);
  ModelSession fork = Fork(session);
  EXPECT_EQ(Get(fork.name).resident_bytes(), 2 * 64 * 128);
  EXPECT_EQ(Get(fork.name).shared_bytes(), 2 * 64 * 128);
  Append(fork, 0, 1);
  EXPECT_EQ(Get(fork.name).shared_bytes(), 64 * 128);
  CheckAttend(session, 0, 2);
  CheckAttend(fork, 0, 2);
}

TEST_F(SessionCallsTest, AppendsWithoutAPositionTellTheLength) {
  StartSessions();
  ModelSession session = Create();
  v1::AppendKeysValuesRequest request = MakeAppend(session, 1, 3);
  request.clear_expected_position();
  v1::AppendKeysValuesResponse response;
  ASSERT_TRUE(Append(request, &response).ok());
  EXPECT_EQ(response.token_count(), 3);
  ASSERT_TRUE(Append(request, &response).ok());
  EXPECT_EQ(response.token_count(), 6);
}

TEST_F(SessionCallsTest, SessionsExpireUnlessUsed) {
  StartSessions();
  v1::CreateSessionRequest request;
  *request.mutable_configuration() = Configuration();
  request.mutable_ttl()->set_seconds(100);
  ModelSession used = Create(request);
  const ModelSession idle = Create(request);
  ModelSession renewed = Create(request);
  clock().Advance(absl::Seconds(60));
  Append(used, 0, 1);
  v1::RenewSessionRequest renew;
  renew.set_name(renewed.name);
  renew.mutable_ttl()->set_seconds(500);
  v1::RenewSessionResponse response;
  ASSERT_TRUE(stub().RenewSession(Context().get(), renew, &response).ok());
  EXPECT_EQ(response.session().ttl().seconds(), 500);
  EXPECT_EQ(response.session().expire_time().seconds(),
            absl::ToUnixSeconds(clock().Now()) + 500);
  clock().Advance(absl::Seconds(60));
  // Whether or not anyone has looked.
  EXPECT_TRUE(Failed(GetStatus(idle.name), Code::NOT_FOUND, "SESSION_NOT_FOUND"));
  server().ReleaseExpired();
  EXPECT_TRUE(Failed(GetStatus(idle.name), Code::NOT_FOUND, "SESSION_NOT_FOUND"));
  EXPECT_TRUE(GetStatus(used.name).ok());
  clock().Advance(absl::Seconds(60));
  server().ReleaseExpired();
  EXPECT_TRUE(Failed(Append(MakeAppend(used, 0, 1)), Code::NOT_FOUND,
                     "SESSION_NOT_FOUND"));
  EXPECT_TRUE(GetStatus(renewed.name).ok());
}

TEST_F(SessionCallsTest, AnotherReplicaIsNamed) {
  AttentionServer::Options options;
  options.sessions.replica_name = "left";
  StartSessions(options);
  const ModelSession here = Create();
  EXPECT_THAT(here.name, testing::StartsWith("sessions/left."));
  const std::string there = "sessions/right." + std::string(32, '0');
  const grpc::Status status = GetStatus(there);
  EXPECT_TRUE(Failed(status, Code::NOT_FOUND, "WRONG_REPLICA"));
  EXPECT_EQ(ErrorInfoOf(status).metadata().at("replica"), "right");
  EXPECT_TRUE(Failed(Delete(there), Code::NOT_FOUND, "WRONG_REPLICA"));
  EXPECT_TRUE(Failed(GetStatus("right." + std::string(32, '0')),
                     Code::INVALID_ARGUMENT, "INVALID_REQUEST"));
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(stub().GetServerInfo(Context().get(), {}, &info).ok());
  EXPECT_EQ(info.replica_name(), "left");
  EXPECT_TRUE(info.supported_configurations().sessions());
  EXPECT_EQ(info.limits().session_memory_bytes(), kMemoryBytes / 2);
  EXPECT_EQ(info.limits().session_page_tokens(), 64);
  EXPECT_EQ(info.limits().session_split_policy(), v1::SPLIT_POLICY_FIXED);
  EXPECT_THAT(info.supported_configurations().split_policies(),
              ElementsAre(v1::SPLIT_POLICY_FIXED, v1::SPLIT_POLICY_BALANCED));
}

TEST_F(SessionCallsTest, ARestartLosesSessions) {
  StartSessions();
  ModelSession session = Create();
  Append(session, 0, 3);
  StopServer();
  StartSessions();
  EXPECT_TRUE(
      Failed(GetStatus(session.name), Code::NOT_FOUND, "SESSION_NOT_FOUND"));
  v1::AppendKeysValuesRequest request = MakeAppend(session, 0, 1);
  EXPECT_TRUE(Failed(Append(request), Code::NOT_FOUND, "SESSION_NOT_FOUND"));
}

TEST_F(SessionCallsTest, OwnersDoNotSeeEachOther) {
  StartSessions();
  v1::CreateSessionRequest request;
  *request.mutable_configuration() = Configuration();
  std::set<std::string> of_a;
  for (int i = 0; i < 5; ++i) of_a.insert(Create(request, "a").name);
  const ModelSession of_b = Create(request, "b");
  EXPECT_TRUE(Failed(GetStatus(of_b.name, "a"), Code::NOT_FOUND,
                     "SESSION_NOT_FOUND"));
  EXPECT_TRUE(GetStatus(of_b.name, "b").ok());

  std::set<std::string> listed;
  v1::ListSessionsRequest list;
  list.set_page_size(2);
  int pages = 0;
  do {
    v1::ListSessionsResponse response;
    ASSERT_TRUE(stub().ListSessions(Context("a").get(), list, &response).ok());
    EXPECT_LE(response.sessions_size(), 2);
    for (const v1::Session& session : response.sessions()) {
      EXPECT_TRUE(listed.insert(session.name()).second);
      EXPECT_EQ(session.layer_token_counts_size(), 0);
    }
    list.set_page_token(response.next_page_token());
    ++pages;
  } while (!list.page_token().empty() && pages < 10);
  EXPECT_EQ(listed, of_a);
  list.set_page_size(-1);
  v1::ListSessionsResponse response;
  EXPECT_TRUE(Failed(stub().ListSessions(Context("a").get(), list, &response),
                     Code::INVALID_ARGUMENT, "INVALID_REQUEST"));
}

TEST_F(SessionCallsTest, QuotasAndMemoryAreBounded) {
  AttentionServer::Options options;
  options.sessions.max_owner_session_count = 2;
  options.sessions.max_owner_tokens = 100'000;
  options.sessions.slab_bytes = 1 << 16;
  options.session_memory_bytes = 4 << 20;
  StartSessions(options);
  v1::CreateSessionRequest request;
  *request.mutable_configuration() = Configuration();
  // A token of a layer takes 128 bytes here: 4 MiB are 32768 of them.
  request.set_reserved_token_count(15'000);
  ModelSession first = Create(request, "a");
  const grpc::Status full = CreateStatus(request, "b");
  EXPECT_TRUE(Failed(full, Code::RESOURCE_EXHAUSTED, "CACHE_FULL"));
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(full.error_details()));
  ASSERT_EQ(details.details_size(), 2);
  EXPECT_TRUE(details.details(1).Is<google::rpc::RetryInfo>());
  request.set_reserved_token_count(20'000);
  EXPECT_TRUE(Failed(CreateStatus(request, "b"), Code::RESOURCE_EXHAUSTED,
                     "REQUEST_TOO_LARGE"));
  request.set_reserved_token_count(60'000);
  EXPECT_TRUE(Failed(CreateStatus(request, "b"), Code::RESOURCE_EXHAUSTED,
                     "QUOTA_EXCEEDED"));
  request.set_reserved_token_count(0);
  Create(request, "a");
  const grpc::Status many = CreateStatus(request, "a");
  EXPECT_TRUE(Failed(many, Code::RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED"));
  ASSERT_TRUE(details.ParseFromString(many.error_details()));
  EXPECT_EQ(details.details_size(), 1);
}

TEST_F(SessionCallsTest, LittleMemoryIsNotLostToSlabs) {
  AttentionServer::Options options;
  options.session_memory_bytes = 1 << 20;
  StartSessions(options);
  ModelSession session = Create();
  // A page has 64 tokens of 128 bytes: 7/8 of the memory.
  for (int i = 0; i < 7; ++i) Append(session, 0, 1024);
  CheckAttend(session, 0, 1);
}

TEST_F(SessionCallsTest, NamesTheFieldAndTheValue) {
  StartSessions();
  const auto expect_invalid = [&](auto change, const std::string& field) {
    v1::CreateSessionRequest request;
    *request.mutable_configuration() = Configuration();
    change(request, *request.mutable_configuration());
    const grpc::Status status = CreateStatus(request);
    EXPECT_EQ(status.error_code(), Code::INVALID_ARGUMENT) << field;
    EXPECT_THAT(status.error_message(), HasSubstr(field));
  };
  using Request = v1::CreateSessionRequest;
  using Config = v1::SessionConfiguration;
  expect_invalid([](Request&, Config& c) { c.clear_data_type(); }, "data_type");
  expect_invalid(
      [](Request&, Config& c) { c.set_data_type(v1::DATA_TYPE_FLOAT8_E4M3); },
      "configuration.data_type must be in [1, 3] "
      "(configuration.key_value_data_type stores keys and values in 8 bits); "
      "got 4");
  expect_invalid([](Request&, Config& c) { c.set_query_head_count(3); },
                 "query_head_count");
  expect_invalid([](Request&, Config& c) { c.set_kv_head_count(0); },
                 "kv_head_count");
  expect_invalid([](Request&, Config& c) { c.set_head_dim_qk(257); },
                 "head_dim_qk");
  expect_invalid([](Request&, Config& c) { c.set_head_dim_v(-1); },
                 "head_dim_v");
  expect_invalid([](Request&, Config& c) { c.set_layer_count(0); },
                 "layer_count");
  expect_invalid([](Request&, Config& c) { c.set_window_left(-1); },
                 "window_left");
  expect_invalid([](Request&, Config& c) { c.set_sink_token_count(1); },
                 "sink_token_count");
  expect_invalid([](Request&, Config& c) { c.add_key_scales(1); }, "key_scales");
  expect_invalid(
      [](Request&, Config& c) {
        c.set_key_value_data_type(v1::KEY_VALUE_DATA_TYPE_FLOAT8_E4M3);
        c.add_value_scales(1);
        c.add_value_scales(0);
      },
      "value_scales[1]");
  expect_invalid(
      [](Request&, Config& c) {
        c.set_split_policy(static_cast<v1::SplitPolicy>(3));
      },
      "configuration.split_policy must be in [0, 2]; got 3");
  expect_invalid([](Request& r, Config&) { r.set_reserved_token_count(-1); },
                 "reserved_token_count");
  expect_invalid([](Request& r, Config&) { r.mutable_ttl()->set_seconds(0); },
                 "ttl");
  expect_invalid(
      [](Request& r, Config&) { r.mutable_ttl()->set_seconds(1'000'000'000); },
      "ttl");
  expect_invalid(
      [](Request& r, Config&) { SetMalformed(*r.mutable_ttl()); },
      "ttl.nanos must be in [-999999999, 999999999]; got 1000000000");
}

TEST_F(SessionCallsTest, MalformedTimesToLiveChangeNothing) {
  StartSessions();
  const ModelSession session = Create();
  const std::string before = Get(session.name).SerializeAsString();
  v1::RenewSessionRequest renew;
  renew.set_name(session.name);
  SetMalformed(*renew.mutable_ttl());
  v1::RenewSessionResponse renewed;
  EXPECT_TRUE(Failed(stub().RenewSession(Context().get(), renew, &renewed),
                     Code::INVALID_ARGUMENT, "INVALID_REQUEST"));
  v1::ForkSessionRequest fork;
  fork.set_name(session.name);
  SetMalformed(*fork.mutable_ttl());
  v1::ForkSessionResponse forked;
  EXPECT_TRUE(Failed(stub().ForkSession(Context().get(), fork, &forked),
                     Code::INVALID_ARGUMENT, "INVALID_REQUEST"));
  EXPECT_EQ(Get(session.name).SerializeAsString(), before);
}

TEST_F(SessionCallsTest, SplitPoliciesThatAreUnspecifiedAreTheServers) {
  AttentionServer::Options options;
  options.session_defaults.split_policy = SplitPolicy::kBalanced;
  StartSessions(options);
  v1::CreateSessionRequest request;
  *request.mutable_configuration() = Configuration();
  request.mutable_configuration()->clear_split_policy();
  EXPECT_EQ(Get(Create(request).name).configuration().split_policy(),
            v1::SPLIT_POLICY_BALANCED);
  request.mutable_configuration()->set_split_policy(v1::SPLIT_POLICY_FIXED);
  EXPECT_EQ(Get(Create(request).name).configuration().split_policy(),
            v1::SPLIT_POLICY_FIXED);
}

TEST_F(SessionCallsTest, ConfigurationsComeBackAsCreated) {
  StartSessions();
  v1::CreateSessionRequest request;
  v1::SessionConfiguration& configuration = *request.mutable_configuration();
  configuration = Configuration();
  configuration.set_mask_type(v1::MASK_TYPE_CAUSAL_BOTTOM_RIGHT);
  configuration.set_precision(v1::PRECISION_TF32);
  configuration.set_window_left(100);
  configuration.set_sink_token_count(4);
  configuration.set_key_value_data_type(v1::KEY_VALUE_DATA_TYPE_FLOAT8_E4M3);
  for (float scale : {0.5f, 2.0f}) {
    configuration.add_key_scales(scale);
    configuration.add_value_scales(scale);
  }
  configuration.set_split_policy(v1::SPLIT_POLICY_BALANCED);
  request.set_reserved_token_count(10);
  const v1::Session session = Get(Create(request).name);
  EXPECT_EQ(session.configuration().SerializeAsString(),
            configuration.SerializeAsString());
  EXPECT_EQ(session.reserved_token_count(), 10);
  EXPECT_EQ(session.create_time().seconds(),
            absl::ToUnixSeconds(clock().Now()));
  EXPECT_EQ(session.ttl().seconds(), 600);
  EXPECT_EQ(session.device_name(), "cpu:0");
  EXPECT_FALSE(session.is_lost());
}

TEST_F(SessionCallsTest, AreOffWithoutMemory) {
  AttentionServer::Options options;
  options.session_memory_bytes = 0;
  StartSessions(options);
  v1::CreateSessionRequest request;
  *request.mutable_configuration() = Configuration();
  EXPECT_TRUE(
      Failed(CreateStatus(request), Code::UNIMPLEMENTED, "UNSUPPORTED"));
  ModelSession session;
  session.name = "sessions/local." + std::string(32, '0');
  session.layers.resize(kLayers);
  EXPECT_TRUE(Failed(Append(MakeAppend(session, 0, 1)), Code::UNIMPLEMENTED,
                     "UNSUPPORTED"));
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(stub().GetServerInfo(Context().get(), {}, &info).ok());
  EXPECT_FALSE(info.supported_configurations().sessions());
}

}  // namespace
}  // namespace attention::test
