// ComputeAttention over real connections, against the reference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <vector>

#include "command_line/version.h"
#include "tests/server/lifecycle/server_fixture.h"
#include "tests/server/metrics/metric_reader.h"

namespace attention::test {
namespace {

using ::testing::HasSubstr;

class ComputeTest : public BackendServerTest {
 protected:
  std::string device_name() const { return std::string(GetParam()) + ":0"; }

  void Check(const RequestSpec& spec, grpc::Channel& channel) {
    const RequestMaker maker(spec, random_);
    const Outcome outcome = Call(channel, maker.request());
    ASSERT_TRUE(outcome.status.ok())
        << outcome.status.error_message() << " for " << ToString(spec);
    ASSERT_TRUE(maker.Check(outcome.response));
  }
};

TEST_P(ComputeTest, RandomRequestsOverTcp) {
  const auto channel = Connect(tcp_address());
  for (int i = 0; i < 300 && !HasFatalFailure(); ++i) {
    Check(RandomSpec(random_), *channel);
  }
}

TEST_P(ComputeTest, RandomRequestsOverAUnixSocket) {
  const auto channel = Connect(unix_address());
  for (int i = 0; i < 150 && !HasFatalFailure(); ++i) {
    Check(RandomSpec(random_), *channel);
  }
}

TEST_P(ComputeTest, EveryTypeLayoutAndPlacement) {
  for (DataType type : {DataType::kFloat32, DataType::kFloat16,
                        DataType::kBFloat16, DataType::kFloat8E4M3}) {
    for (v1::Layout layout :
         {v1::LAYOUT_BSHD, v1::LAYOUT_BHSD, v1::LAYOUT_THD}) {
      for (Placement placement : {Placement::kContiguous, Placement::kGaps,
                                  Placement::kTransposed, Placement::kExpanded}) {
        for (bool everything : {false, true}) {
          RequestSpec spec;
          spec.data_type = type;
          spec.layout = layout;
          spec.placement = placement;
          spec.batch = 3;
          spec.query_lengths = {5, 0, 3};
          spec.key_lengths = {7, 4, 6};
          spec.head_dim_qk = 40;
          spec.head_dim_v = 15;
          spec.return_log_sum_exp = true;
          if (everything) AskForEverything(spec);
          Check(spec, *channel());
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// Larger than a slice of gRPC's, so that elements are cut apart.
TEST_P(ComputeTest, MessagesOfManySlices) {
  for (DataType type :
       {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat8E4M3}) {
    RequestSpec spec;
    spec.data_type = type;
    spec.batch = 2;
    spec.query_tokens = 130;
    spec.key_tokens = 1100;
    spec.query_heads = 4;
    spec.kv_heads = 4;
    spec.head_dim_qk = 64;
    spec.head_dim_v = 100;
    spec.return_log_sum_exp = true;
    Check(spec, *Connect(tcp_address()));
    Check(spec, *Connect(unix_address()));
  }
}

TEST_P(ComputeTest, EmptyDimensions) {
  for (int64_t RequestSpec::*size :
       {&RequestSpec::batch, &RequestSpec::query_tokens,
        &RequestSpec::key_tokens, &RequestSpec::query_heads}) {
    RequestSpec spec;
    spec.*size = 0;
    spec.return_log_sum_exp = true;
    spec.return_weights = true;
    Check(spec, *channel());
  }
}

// Requests of several configurations at once: each gets its own answer.
TEST_P(ComputeTest, ConcurrentRequestsGetTheirOwnAnswers) {
  std::vector<RequestMaker> makers;
  std::vector<std::future<Outcome>> calls;
  makers.reserve(120);
  for (int i = 0; i < 120; ++i) {
    RequestSpec spec;
    if (i % 3 == 0) {
      spec.data_type = DataType::kFloat8E4M3;
      spec.has_scales = i % 4 != 0;
    }
    spec.head_dim_qk = spec.head_dim_v = i % 2 == 0 ? 16 : 24;
    spec.query_tokens = 1 + i % 30;
    spec.key_tokens = 1 + i % 70;
    makers.emplace_back(spec, random_);
    calls.push_back(CallInBackground(makers.back().request()));
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    const Outcome outcome = calls[i].get();
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    EXPECT_TRUE(makers[i].Check(outcome.response));
  }
}

TEST_P(ComputeTest, ReportsTimings) {
  const Outcome outcome = Call(SmallRequest());
  ASSERT_TRUE(outcome.status.ok());
  const v1::ComputeAttentionTimings& timings = outcome.response.timings();
  EXPECT_EQ(timings.device_name(), device_name());
  EXPECT_EQ(timings.batch_request_count(), 1);
  EXPECT_EQ(timings.batch_sequence_count(), 1);
  EXPECT_GT(timings.compute_duration().nanos(), 0);
}

TEST_P(ComputeTest, RefusesInvalidRequestsWithAReason) {
  v1::ComputeAttentionRequest request = SmallRequest();
  request.mutable_key()->pop_back();
  Outcome outcome = Call(request);
  EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(outcome.status.error_message(), HasSubstr("key"));
  EXPECT_EQ(ReasonOf(outcome.status), "INVALID_REQUEST");

  request = SmallRequest();
  request.set_algorithm(v1::ALGORITHM_STREAMING);
  request.set_return_weights(true);
  outcome = Call(request);
  EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ReasonOf(outcome.status), "UNSUPPORTED");
  EXPECT_TRUE(Call(SmallRequest()).status.ok());
}

TEST_P(ComputeTest, CountsEveryRequestAndByte) {
  const v1::ComputeAttentionRequest request = SmallRequest();
  size_t received = 0;
  size_t sent = 0;
  for (int i = 0; i < 5; ++i) {
    const Outcome outcome = Call(request);
    ASSERT_TRUE(outcome.status.ok());
    received += request.ByteSizeLong();
    sent += outcome.response.ByteSizeLong();
  }
  v1::ComputeAttentionRequest invalid = request;
  invalid.clear_data_type();
  EXPECT_FALSE(Call(invalid).status.ok());
  received += invalid.ByteSizeLong();

  const MetricReader metrics(server().metrics());
  EXPECT_EQ(metrics.Sum("attention_requests_started_total"), 6);
  EXPECT_EQ(metrics.Sum("attention_requests_total"), 6);
  EXPECT_EQ(metrics.Sum("attention_requests_total", {{"code", "OK"}}), 5);
  EXPECT_EQ(metrics.Sum("attention_requests_in_flight"), 0);
  const std::string config =
      metrics.LabelValues("attention_queue_requests", "config").front();
  for (const char* phase : {"receive", "queue", "copy_in", "compute", "copy_out",
                            "send", "total"}) {
    const auto durations = metrics.Histogram("attention_phase_duration_seconds",
                                             {{"phase", phase}, {"config", config}});
    ASSERT_TRUE(durations.has_value()) << phase;
    EXPECT_EQ(durations->sample_count, 5) << phase;
  }
  EXPECT_EQ(metrics.Sum("attention_bytes_total", {{"direction", "received"}}),
            received);
  EXPECT_EQ(metrics.Sum("attention_bytes_total", {{"direction", "sent"}}), sent);
}

TEST_P(ComputeTest, DescribesItself) {
  const auto stub = v1::AttentionService::NewStub(channel());
  grpc::ClientContext context;
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(stub->GetServerInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.version(), kProgramVersion);
  EXPECT_EQ(info.backend(), GetParam());
  ASSERT_GE(info.devices_size(), 1);
  EXPECT_EQ(info.devices(0).name(), device_name());
  EXPECT_GE(info.devices(0).processor_count(), 2);
  EXPECT_GT(info.devices(0).memory_budget_bytes(), 0);
  EXPECT_EQ(info.limits().max_message_bytes(), 1 << 30);
  EXPECT_EQ(info.limits().max_head_dim(), 256);
  EXPECT_EQ(info.supported_configurations().data_types_size(), 4);
  EXPECT_EQ(info.supported_configurations().layouts_size(), 3);
  EXPECT_THAT(info.log_sum_exp_convention(), HasSubstr("natural log"));
}

INSTANTIATE_TEST_SUITE_P(Cpu, ComputeTest, testing::Values("cpu"));
INSTANTIATE_TEST_SUITE_P(Cuda, ComputeTest, testing::Values("cuda"));

class MessageLimitTest : public ServerTest {};

TEST_F(MessageLimitTest, HoldsForRequestsAndResponses) {
  AttentionServer::Options options;
  options.max_message_bytes = 64 << 10;
  StartServer(options);
  RequestSpec spec;
  spec.query_heads = spec.kv_heads = 1;
  spec.head_dim_qk = spec.head_dim_v = 32;
  spec.query_tokens = 100;
  spec.key_tokens = 190;  // K and V fill 48 KiB, Q 13 KiB
  const RequestMaker fits(spec, random_);
  const Outcome served = Call(fits.request());
  ASSERT_TRUE(served.status.ok()) << served.status.error_message();
  EXPECT_TRUE(fits.Check(served.response));

  spec.key_tokens = 210;
  const Outcome too_long = Call(RequestMaker(spec, random_).request());
  EXPECT_EQ(too_long.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(too_long.status.error_message(), HasSubstr("larger than max"));

  spec.key_tokens = 190;
  spec.return_weights = true;  // 76 KiB
  const Outcome long_answer = Call(RequestMaker(spec, random_).request());
  EXPECT_EQ(long_answer.status.error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(ReasonOf(long_answer.status), "REQUEST_TOO_LARGE");
  EXPECT_TRUE(Call(fits.request()).status.ok());
}

}  // namespace
}  // namespace attention::test
