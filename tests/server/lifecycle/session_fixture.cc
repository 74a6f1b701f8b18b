#include "tests/server/lifecycle/session_fixture.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "absl/time/clock.h"
#include "kernels/reference/reference_attention.h"
#include "kernels/reference/tolerance.h"

namespace attention::test {
namespace {

HeadConfig Heads() {
  return {.data_type = DataType::kFloat32,
          .head_dim_qk = 8,
          .head_dim_v = 8,
          .query_head_count = 4,
          .kv_head_count = 2};
}

std::vector<double> Doubles(absl::string_view bytes) {
  Floats floats(bytes.size() / sizeof(float));
  std::memcpy(floats.data(), bytes.data(), bytes.size());
  return {floats.begin(), floats.end()};
}

}  // namespace

void SessionTest::TearDown() {
  stub_.reset();
  StopServer();  // before its devices and its clock
  devices_.reset();
}

void SessionTest::StartSessions(AttentionServer::Options options) {
  if (devices_ == nullptr) {
    auto devices =
        cuda_runtime_ != nullptr
            ? CreateDevices(device_options_, cuda_runtime_, &device_metrics_)
            : CreateDevices(device_options_, &device_metrics_);
    if (device_options_.backend == Backend::kCuda &&
        absl::IsFailedPrecondition(devices.status())) {
      GTEST_SKIP() << devices.status().message();
    }
    ASSERT_TRUE(devices.ok()) << devices.status();
    devices_ = *std::move(devices);
  }
  StartServerOn(std::move(options), devices_->devices(), &clock_);
  stub_.reset();
}

v1::AttentionService::Stub& SessionTest::stub() {
  if (stub_ == nullptr) {
    stub_ = v1::AttentionService::NewStub(Connect(tcp_address()));
  }
  return *stub_;
}

std::unique_ptr<grpc::ClientContext> SessionTest::Context(
    const std::string& owner) {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
  if (!owner.empty()) context->AddMetadata("attention-tenant", owner);
  return context;
}

v1::SessionConfiguration SessionTest::Configuration() {
  v1::SessionConfiguration configuration;
  configuration.set_data_type(v1::DATA_TYPE_FLOAT32);
  configuration.set_query_head_count(kQueryHeads);
  configuration.set_kv_head_count(kKvHeads);
  configuration.set_head_dim_qk(kHeadDim);
  configuration.set_head_dim_v(kHeadDim);
  configuration.set_layer_count(kLayers);
  return configuration;
}

ModelSession SessionTest::Create(const v1::CreateSessionRequest& request,
                                 const std::string& owner) {
  v1::CreateSessionResponse response;
  const grpc::Status status =
      stub().CreateSession(Context(owner).get(), request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  ModelSession session;
  session.name = response.session().name();
  session.layers.resize(kLayers);
  if (request.configuration().has_window_left()) {
    session.window_left = request.configuration().window_left();
    session.sink_tokens = request.configuration().sink_token_count();
  }
  return session;
}

ModelSession SessionTest::Create() {
  v1::CreateSessionRequest request;
  *request.mutable_configuration() = Configuration();
  return Create(request);
}

v1::Session SessionTest::Get(const std::string& name,
                             const std::string& owner) {
  v1::GetSessionRequest request;
  request.set_name(name);
  v1::GetSessionResponse response;
  const grpc::Status status =
      stub().GetSession(Context(owner).get(), request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.session();
}

std::string SessionTest::RandomBytes(int64_t count, Floats* floats) {
  std::normal_distribution<float> normal;
  Floats values(count);
  for (float& value : values) value = normal(random_);
  if (floats != nullptr) {
    floats->insert(floats->end(), values.begin(), values.end());
  }
  return std::string(reinterpret_cast<const char*>(values.data()),
                     values.size() * sizeof(float));
}

int SessionTest::Draw(int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random_);
}

v1::AppendKeysValuesRequest SessionTest::MakeAppend(ModelSession& session,
                                                    int layer, int tokens) {
  ModelSession::Layer& model = session.layers[layer];
  v1::AppendKeysValuesRequest request;
  request.set_session(session.name);
  request.set_layer(layer);
  request.set_token_count(tokens);
  request.set_expected_position(model.tokens);
  request.set_key(RandomBytes(int64_t{tokens} * kKeyRow, &model.key));
  request.set_value(RandomBytes(int64_t{tokens} * kKeyRow, &model.value));
  model.tokens += tokens;
  return request;
}

grpc::Status SessionTest::Append(const v1::AppendKeysValuesRequest& request,
                                 v1::AppendKeysValuesResponse* response) {
  v1::AppendKeysValuesResponse unused;
  return stub().AppendKeysValues(Context().get(), request,
                                 response != nullptr ? response : &unused);
}

void SessionTest::Append(ModelSession& session, int layer, int tokens) {
  v1::AppendKeysValuesResponse response;
  const grpc::Status status =
      Append(MakeAppend(session, layer, tokens), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.token_count(), session.layers[layer].tokens);
}

v1::DecodeRequest SessionTest::MakeDecode(const std::vector<Step>& steps) {
  v1::DecodeRequest request;
  request.set_return_log_sum_exp(true);
  for (const Step& step : steps) {
    const v1::AppendKeysValuesRequest append =
        MakeAppend(*step.session, step.layer, step.tokens);
    v1::DecodeItem& item = *request.add_items();
    item.set_session(append.session());
    item.set_layer(append.layer());
    item.set_token_count(append.token_count());
    item.set_expected_position(append.expected_position());
    request.mutable_query()->append(
        RandomBytes(int64_t{step.tokens} * kQueryRow));
    request.mutable_key()->append(append.key());
    request.mutable_value()->append(append.value());
  }
  return request;
}

v1::AttendSessionRequest SessionTest::MakeAttend(const ModelSession& session,
                                                 int layer, int tokens) {
  v1::AttendSessionRequest request;
  request.set_session(session.name);
  request.set_layer(layer);
  request.set_token_count(tokens);
  request.set_return_log_sum_exp(true);
  request.set_query(RandomBytes(int64_t{tokens} * kQueryRow));
  return request;
}

grpc::Status SessionTest::Attend(const v1::AttendSessionRequest& request,
                                 v1::AttendSessionResponse* response) {
  return stub().AttendSession(Context().get(), request, response);
}

testing::AssertionResult SessionTest::Check(const ModelSession& session,
                                            int layer, absl::string_view query,
                                            absl::string_view output,
                                            absl::string_view log_sum_exp,
                                            std::optional<KeyRange> range) {
  const ModelSession::Layer& model = session.layers[layer];
  reference::DenseSequence dense;
  dense.query = Doubles(query);
  dense.query_length = static_cast<int64_t>(dense.query.size()) / kQueryRow;
  dense.key_length = model.tokens;
  dense.scale = 1 / std::sqrt(double{kHeadDim});
  dense.key.assign(model.key.begin(), model.key.end());
  dense.value.assign(model.value.begin(), model.value.end());
  dense.sees = [&](int64_t i, int64_t j) {
    const int64_t own = i + dense.key_length - dense.query_length;
    if (j > own) return false;
    if (range.has_value() && (j < range->begin || j >= range->end)) return false;
    return !session.window_left.has_value() || j >= own - *session.window_left ||
           j < session.sink_tokens;
  };
  const HeadConfig heads = Heads();
  const reference::SequenceResult want =
      reference::ComputeAttention(heads, dense);
  const std::vector<double> got = Doubles(output);
  const std::vector<double> got_log = Doubles(log_sum_exp);
  if (got.size() != want.output.size() ||
      got_log.size() != want.log_sum_exp.size()) {
    return testing::AssertionFailure()
           << got.size() << " and " << got_log.size() << " elements instead of "
           << want.output.size() << " and " << want.log_sum_exp.size();
  }
  const reference::Tolerance tolerance =
      reference::ToleranceOf(heads.data_type, heads.precision);
  for (size_t i = 0; i < got.size(); ++i) {
    // Values are standard normal: their averages are of the order of 1.
    if (!(std::abs(got[i] - want.output[i]) <= tolerance.Output(1))) {
      return testing::AssertionFailure()
             << "output[" << i << "] is " << got[i] << " instead of "
             << want.output[i];
    }
  }
  for (size_t i = 0; i < got_log.size(); ++i) {
    const double expected = want.log_sum_exp[i];
    const bool is_close =
        std::isfinite(expected)
            ? std::abs(got_log[i] - expected) <= tolerance.LogSumExp(expected)
            : got_log[i] == expected;
    if (!is_close) {
      return testing::AssertionFailure()
             << "log_sum_exp[" << i << "] is " << got_log[i] << " instead of "
             << expected;
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace attention::test
