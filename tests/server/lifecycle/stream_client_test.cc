// Streamed calls of attention::Client to a real server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cpp/attention_client.h"
#include "client/cpp/client_factory.h"
#include "server/rpc/config_fields.h"
#include "tests/server/lifecycle/breaking_proxy.h"
#include "tests/server/lifecycle/stream_fixture.h"
#include "tests/server/metrics/metric_reader.h"

namespace attention::test {
namespace {

TensorView View(const std::string& bytes, const v1::TensorDescriptor& of) {
  return {.data = bytes.data(),
          .size_bytes = bytes.size(),
          .shape = {of.shape().begin(), of.shape().end()},
          .strides = {of.strides().begin(), of.strides().end()}};
}

std::vector<float> Numbers(const google::protobuf::RepeatedField<float>& of) {
  return {of.begin(), of.end()};
}

// For the settings that the tests below use. Refers to the request's tensors.
AttentionRequest ToRequest(const v1::ComputeAttentionRequest& proto) {
  AttentionRequest request;
  HeadConfig config;
  EXPECT_TRUE(ReadDataType(proto.data_type(), config).ok());
  request.data_type = config.data_type;
  request.query = View(proto.query(), proto.query_descriptor());
  request.key = View(proto.key(), proto.key_descriptor());
  request.value = View(proto.value(), proto.value_descriptor());
  request.query_scales = Numbers(proto.query_scales());
  request.key_scales = Numbers(proto.key_scales());
  request.value_scales = Numbers(proto.value_scales());
  request.return_log_sum_exp = proto.return_log_sum_exp();
  request.return_weights = proto.return_weights();
  return request;
}

// As the server would have answered a message.
v1::ComputeAttentionResponse ToResponse(const v1::ComputeAttentionRequest& of,
                                        const AttentionResult& result) {
  v1::ComputeAttentionResponse response;
  response.set_data_type(ProtoDataType(result.data_type));
  const auto set = [](const std::vector<int64_t>& shape,
                      v1::TensorDescriptor* descriptor) {
    descriptor->mutable_shape()->Add(shape.begin(), shape.end());
  };
  set(result.output_shape, response.mutable_output_descriptor());
  response.set_output(result.output);
  if (of.return_log_sum_exp()) {
    set(result.log_sum_exp_shape, response.mutable_log_sum_exp_descriptor());
    response.set_log_sum_exp(result.log_sum_exp);
  }
  if (of.return_weights()) {
    set(result.weights_shape, response.mutable_weights_descriptor());
    response.set_weights(result.weights);
  }
  return response;
}

class StreamClientTest : public ServerTest {
 protected:
  // Before the device.
  ~StreamClientTest() override { StopServer(); }

  std::unique_ptr<Client> MakeClient(Client::Options options = {}) {
    options.target = tcp_address();
    auto client = Client::Create(options);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }

  RequestSpec LargeSpec() {
    RequestSpec spec;
    spec.data_type = DataType::kBFloat16;
    spec.query_tokens = 200;
    spec.key_tokens = 9000;
    spec.query_heads = spec.kv_heads = 8;
    spec.head_dim_qk = spec.head_dim_v = 64;  // keys of 9 MB
    spec.return_log_sum_exp = true;
    spec.return_weights = true;  // 29 MB
    return spec;
  }

  double Streams() {
    return MetricReader(server().metrics())
        .Sum("attention_upload_events_total", {{"event", "started"}});
  }

  PuppetDevice device_;  // for servers that do not compute
};

TEST_F(StreamClientTest, SendsAndReceivesChunks) {
  StartServer();
  const auto client = MakeClient();
  RequestSpec float8 = LargeSpec();
  float8.data_type = DataType::kFloat8E4M3;
  AskForEverything(float8);
  for (const RequestSpec& spec : {LargeSpec(), RequestSpec(), float8}) {
    const RequestMaker maker(spec, random_);
    const auto result = client->Compute(ToRequest(maker.request()),
                                        {.transport = Transport::kStream});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(maker.Check(ToResponse(maker.request(), *result)));
    EXPECT_EQ(result->timings.device_name(), "cpu:0");
  }
  EXPECT_EQ(Streams(), 3);
}

TEST_F(StreamClientTest, ResultsGoStraightToTheCallersMemory) {
  StartServer();
  const RequestMaker maker(LargeSpec(), random_);
  AttentionRequest request = ToRequest(maker.request());
  std::vector<char> output(200 * 8 * 64 * 2);
  std::vector<char> weights(200 * 9000 * 8 * 2);
  request.output_buffer = {output.data(), output.size()};
  request.weights_buffer = {weights.data(), weights.size()};
  const auto client = MakeClient();
  auto result =
      client->Compute(request, {.transport = Transport::kStream});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->output.empty());
  EXPECT_TRUE(result->weights.empty());
  result->output.assign(output.begin(), output.end());
  result->weights.assign(weights.begin(), weights.end());
  EXPECT_TRUE(maker.Check(ToResponse(maker.request(), *result)));

  for (const size_t wrong : {output.size() - 2, output.size() + 2}) {
    output.resize(wrong);
    request.output_buffer = {output.data(), output.size()};
    EXPECT_FALSE(
        client->Compute(request, {.transport = Transport::kStream}).ok());
  }
}

TEST_F(StreamClientTest, StreamsWhatExceedsAMessage) {
  StartServer();
  const RequestMaker maker(RequestSpec(), random_);
  const AttentionRequest request = ToRequest(maker.request());
  const size_t in = request.query.size_bytes + request.key.size_bytes +
                    request.value.size_bytes;
  EXPECT_TRUE(
      MakeClient({.max_message_bytes = in})->Compute(request).ok());
  EXPECT_EQ(Streams(), 0);
  EXPECT_TRUE(
      MakeClient({.max_message_bytes = in - 1})->Compute(request).ok());
  EXPECT_EQ(Streams(), 1);
  // By its answer.
  RequestSpec spec;
  spec.query_tokens = 30;
  spec.key_tokens = 1;
  spec.query_heads = spec.kv_heads = 1;
  spec.head_dim_qk = 1;
  spec.head_dim_v = 64;
  const RequestMaker wide(spec, random_);
  EXPECT_TRUE(MakeClient({.max_message_bytes = 30 * 64 * 4 - 1})
                  ->Compute(ToRequest(wide.request()))
                  .ok());
  EXPECT_EQ(Streams(), 2);
  EXPECT_TRUE(MakeClient({.max_message_bytes = 0})
                  ->Compute(request, {.transport = Transport::kMessage})
                  .ok());
  EXPECT_EQ(Streams(), 2);
}

TEST_F(StreamClientTest, SeveralAtATime) {
  StartServer();
  const auto client = MakeClient();
  std::vector<RequestMaker> makers;
  makers.reserve(20);
  std::vector<std::promise<absl::StatusOr<AttentionResult>>> results(20);
  for (auto& promise : results) {
    RequestSpec spec;
    spec.key_tokens = 500;
    makers.emplace_back(spec, random_);
    client->ComputeAsync(
        ToRequest(makers.back().request()),
        [&promise](absl::StatusOr<AttentionResult> result) {
          promise.set_value(std::move(result));
        },
        {.transport = Transport::kStream});
  }
  for (size_t i = 0; i < results.size(); ++i) {
    const auto result = results[i].get_future().get();
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(makers[i].Check(ToResponse(makers[i].request(), *result)));
  }
}

TEST_F(StreamClientTest, ErrorsAreTheServers) {
  StartServer();
  const auto client = MakeClient();
  AttentionRequest request;
  const auto result =
      client->Compute(request, {.transport = Transport::kStream});
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorReason(result.status()), "INVALID_REQUEST");
}

// The server is asked again, and what it has is not sent twice.
TEST_F(StreamClientTest, ComesBackToAFullQueue) {
  AttentionServer::Options options;
  options.scheduling.max_queued_requests = 1;
  StartServer(options, &device_);
  std::future<Outcome> running = CallInBackground(SmallRequest());
  device_.AwaitInFlight(1);
  std::future<Outcome> queued = CallInBackground(SmallRequest());
  const MetricReader metrics(server().metrics());
  while (metrics.Sum("attention_queue_requests") != 1) {
    std::this_thread::yield();
  }
  const RequestMaker maker(RequestSpec(), random_);
  const auto client = MakeClient({.max_attempts = 100});
  std::promise<absl::StatusOr<AttentionResult>> promise;
  client->ComputeAsync(
      ToRequest(maker.request()),
      [&](absl::StatusOr<AttentionResult> result) {
        promise.set_value(std::move(result));
      },
      {.transport = Transport::kStream});
  while (metrics.Sum("attention_upload_events_total",
                     {{"event", "resumed"}}) == 0) {
    std::this_thread::yield();
  }
  device_.Finish();
  device_.AwaitInFlight(1);
  device_.Finish();
  running.get();
  queued.get();
  device_.AwaitInFlight(1);
  device_.Finish();
  // The device puts no answer into it.
  EXPECT_EQ(promise.get_future().get().status().code(),
            absl::StatusCode::kInternal);
  EXPECT_EQ(
      metrics.Sum("attention_upload_events_total", {{"event", "started"}}), 1);
}

// Wherever the connection breaks, on the way there or back, the answer is right,
// and what has arrived is not sent again.
TEST_F(StreamClientTest, GoesOnWhenTheConnectionBreaks) {
  StartServer();
  RequestSpec spec;
  spec.data_type = DataType::kBFloat16;
  spec.query_tokens = 3000;
  spec.key_tokens = 30;
  spec.query_heads = spec.kv_heads = 8;
  spec.head_dim_qk = spec.head_dim_v = 128;  // 6 MB there, 6 MB back
  const RequestMaker maker(spec, random_);
  const AttentionRequest request = ToRequest(maker.request());
  const auto random_bytes = [&] {
    return std::uniform_int_distribution<size_t>(100, 6'000'000)(random_);
  };
  for (int round = 0; round < 5; ++round) {
    BreakingProxy proxy(tcp_address(), {{.to_server = random_bytes()},
                                        {.to_server = random_bytes()},
                                        {.to_client = random_bytes()}});
    RetryPolicy policy;
    policy.initial_backoff = absl::Milliseconds(1);
    auto client = CreateClient(
        {.target = proxy.address(), .channel_count = 1, .max_attempts = 10},
        policy, CallClock::Real());
    ASSERT_TRUE(client.ok());
    const auto result =
        (*client)->Compute(request, {.transport = Transport::kStream});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(maker.Check(ToResponse(maker.request(), *result)));
    EXPECT_GT(proxy.connection_count(), 1u);
  }
  const MetricReader metrics(server().metrics());
  EXPECT_GT(metrics.Sum("attention_upload_events_total",
                        {{"event", "resumed"}}),
            0);
}

TEST_F(StreamClientTest, ADestroyedClientCancels) {
  StartServer({}, &device_);
  const RequestMaker maker(LargeSpec(), random_);
  std::promise<absl::StatusOr<AttentionResult>> promise;
  auto client = MakeClient();
  client->ComputeAsync(
      ToRequest(maker.request()),
      [&](absl::StatusOr<AttentionResult> result) {
        promise.set_value(std::move(result));
      },
      {.transport = Transport::kStream});
  device_.AwaitInFlight(1);
  client.reset();
  EXPECT_EQ(promise.get_future().get().status().code(),
            absl::StatusCode::kCancelled);
  device_.Finish();
}

TEST_F(StreamClientTest, TimesOut) {
  StartServer({}, &device_);
  const RequestMaker maker(RequestSpec(), random_);
  EXPECT_EQ(MakeClient()
                ->Compute(ToRequest(maker.request()),
                          {.timeout = absl::Milliseconds(50),
                           .transport = Transport::kStream})
                .status()
                .code(),
            absl::StatusCode::kDeadlineExceeded);
  device_.AwaitInFlight(1);
  device_.Finish();
}

}  // namespace
}  // namespace attention::test
