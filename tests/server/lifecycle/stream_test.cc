// StreamAttention over real connections, against the reference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <string>
#include <vector>

#include "server/uploads/upload.h"
#include "tests/server/engine/fake_cuda_runtime.h"
#include "tests/server/lifecycle/stream_fixture.h"
#include "tests/server/metrics/metric_reader.h"

namespace attention::test {
namespace {

using ::testing::HasSubstr;

// On the backend that the parameter names.
class StreamTest : public ServerTest,
                   public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    AttentionServer::Options options;
    if (absl::string_view(GetParam()) == "fake_cuda") {
      options.devices.warm_up = false;
      StartServer(options, nullptr, &cuda_);
      return;
    }
    options.devices.backend = *ParseBackend(GetParam());
    StartServer(options);
  }

  // Before the GPUs go.
  void TearDown() override { StopServer(); }

  // Sends in chunks of any order.
  void Check(const RequestSpec& spec, size_t chunk_bytes,
             std::shared_ptr<grpc::Channel> channel) {
    const RequestMaker maker(spec, random_);
    const v1::ComputeAttentionRequest& request = maker.request();
    // In any order there may be a gap for every second chunk.
    chunk_bytes = std::max(
        chunk_bytes, std::max({request.query().size(), request.key().size(),
                               request.value().size()}) /
                         kMaxReceivedRanges);
    auto chunks = ChunksOf(request, chunk_bytes);
    std::shuffle(chunks.begin(), chunks.end(), random_);
    const Outcome outcome =
        CallStream(std::move(channel), StartOf(maker.request()), chunks);
    ASSERT_TRUE(outcome.status.ok())
        << outcome.status.error_message() << " for " << ToString(spec);
    ASSERT_TRUE(maker.Check(outcome.response));
  }

  FakeCudaRuntime cuda_{2};

  size_t RandomChunkBytes() {
    return size_t{1} << std::uniform_int_distribution<int>(0, 12)(random_);
  }
};

TEST_P(StreamTest, RandomRequestsInChunksOfAnyOrder) {
  const auto tcp = Connect(tcp_address());
  const auto unix = Connect(unix_address());
  for (int i = 0; i < 100 && !HasFatalFailure(); ++i) {
    Check(RandomSpec(random_), RandomChunkBytes(), i % 2 == 0 ? tcp : unix);
  }
}

TEST_P(StreamTest, ChunksOfOneByteAndOfAWholeTensor) {
  RequestSpec spec;
  spec.return_log_sum_exp = true;
  spec.return_weights = true;
  Check(spec, 1, channel());
  Check(spec, size_t{1} << 20, channel());
}

TEST_P(StreamTest, EveryTypeLayoutAndPlacement) {
  for (DataType type : {DataType::kFloat32, DataType::kFloat16,
                        DataType::kBFloat16, DataType::kFloat8E4M3}) {
    for (v1::Layout layout :
         {v1::LAYOUT_BSHD, v1::LAYOUT_BHSD, v1::LAYOUT_THD}) {
      for (Placement placement : {Placement::kContiguous, Placement::kGaps,
                                  Placement::kTransposed, Placement::kExpanded}) {
        RequestSpec spec;
        spec.data_type = type;
        spec.layout = layout;
        spec.placement = placement;
        spec.batch = 3;
        spec.query_lengths = {5, 0, 3};
        spec.key_lengths = {7, 4, 6};
        spec.head_dim_qk = 40;
        spec.head_dim_v = 15;
        AskForEverything(spec);
        Check(spec, RandomChunkBytes(), channel());
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Results of several chunks too.
TEST_P(StreamTest, LargeTensors) {
  RequestSpec spec;
  spec.data_type = DataType::kBFloat16;
  spec.query_tokens = 300;
  spec.key_tokens = 5000;
  spec.query_heads = 8;
  spec.kv_heads = 8;
  spec.head_dim_qk = 64;
  spec.head_dim_v = 64;
  spec.return_log_sum_exp = true;
  spec.return_weights = true;
  Check(spec, size_t{1} << 20, Connect(tcp_address()));
  Check(spec, 300'001, Connect(unix_address()));
}

TEST_P(StreamTest, EmptyDimensions) {
  for (int64_t RequestSpec::*size :
       {&RequestSpec::batch, &RequestSpec::query_tokens,
        &RequestSpec::key_tokens, &RequestSpec::query_heads}) {
    RequestSpec spec;
    spec.*size = 0;
    spec.return_log_sum_exp = true;
    spec.return_weights = true;
    Check(spec, 16, channel());
  }
}

// What comes twice, or overlaps, counts once: the first time.
TEST_P(StreamTest, BytesThatHaveArrivedAreIgnored) {
  const RequestMaker maker(RequestSpec(), random_);
  const v1::ComputeAttentionRequest& request = maker.request();
  std::vector<v1::StreamAttentionRequest> chunks;
  for (const v1::StreamAttentionRequest& chunk : ChunksOf(request, 48)) {
    chunks.push_back(chunk);
    std::string garbage = chunk.data();
    for (char& c : garbage) c = static_cast<char>(~c);
    chunks.push_back(Chunk(chunk.tensor(), chunk.byte_offset(), garbage));
    // Halfway into the chunk before.
    if (chunk.byte_offset() > 0) {
      chunks.push_back(
          Chunk(chunk.tensor(), chunk.byte_offset() - 24, garbage));
    }
    chunks.push_back(Chunk(chunk.tensor(), chunk.byte_offset(), ""));
  }
  const Outcome outcome = CallStream(channel(), StartOf(request), chunks);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_TRUE(maker.Check(outcome.response));
}

// The answer does not wait for the caller to close its side, nor mind if it has.
TEST_P(StreamTest, ClosingTheSideIsOptional) {
  const RequestMaker maker(RequestSpec(), random_);
  for (bool close : {false, true}) {
    StreamCaller caller(channel());
    ASSERT_TRUE(caller.Start(StartOf(maker.request())));
    for (const auto& chunk : ChunksOf(maker.request(), 64)) {
      ASSERT_TRUE(caller.Send(chunk));
    }
    if (close) caller.CloseSide();
    const Outcome outcome = caller.Finish();
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    EXPECT_TRUE(maker.Check(outcome.response));
  }
}

TEST_P(StreamTest, ConcurrentStreamsGetTheirOwnAnswers) {
  std::vector<RequestMaker> makers;
  std::vector<std::future<Outcome>> calls;
  makers.reserve(40);
  for (int i = 0; i < 40; ++i) {
    RequestSpec spec;
    spec.head_dim_qk = spec.head_dim_v = i % 2 == 0 ? 16 : 24;
    spec.query_tokens = 1 + i % 30;
    spec.key_tokens = 1 + i % 70;
    makers.emplace_back(spec, random_);
    auto chunks = ChunksOf(makers.back().request(), 500);
    std::shuffle(chunks.begin(), chunks.end(), random_);
    calls.push_back(std::async(
        std::launch::async, [channel = channel(), chunks = std::move(chunks),
                             start = StartOf(makers.back().request())] {
          return CallStream(channel, start, chunks);
        }));
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    const Outcome outcome = calls[i].get();
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    EXPECT_TRUE(makers[i].Check(outcome.response));
  }
}

TEST_P(StreamTest, CountsLikeOtherRequests) {
  const v1::ComputeAttentionRequest request = SmallRequest();
  const auto chunks = ChunksOf(request, 100);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(CallStream(channel(), StartOf(request), chunks).status.ok());
  }
  v1::StreamAttentionStart invalid = StartOf(request);
  invalid.mutable_request()->clear_data_type();
  EXPECT_FALSE(CallStream(channel(), invalid, {}).status.ok());

  v1::StreamAttentionRequest first;
  *first.mutable_start() = StartOf(request);
  size_t received = first.ByteSizeLong();
  for (const auto& chunk : chunks) received += chunk.ByteSizeLong();
  received *= 3;
  *first.mutable_start() = invalid;
  received += first.ByteSizeLong();

  server().Drain(absl::Seconds(30));
  const MetricReader metrics(server().metrics());
  EXPECT_EQ(metrics.Sum("attention_requests_started_total"), 4);
  EXPECT_EQ(metrics.Sum("attention_requests_total", {{"code", "OK"}}), 3);
  EXPECT_EQ(metrics.Sum("attention_requests_in_flight"), 0);
  EXPECT_EQ(metrics.Sum("attention_bytes_total", {{"direction", "received"}}),
            received);
  EXPECT_EQ(metrics.Sum("attention_uploads"), 0);
  EXPECT_EQ(metrics.Sum("attention_upload_bytes"), 0);
  EXPECT_EQ(
      metrics.Sum("attention_upload_events_total", {{"event", "started"}}), 3);
  for (const char* phase : {"receive", "queue", "compute", "send", "total"}) {
    const std::string config =
        metrics.LabelValues("attention_queue_requests", "config").front();
    const auto durations = metrics.Histogram("attention_phase_duration_seconds",
                                             {{"phase", phase}, {"config", config}});
    ASSERT_TRUE(durations.has_value()) << phase;
    EXPECT_EQ(durations->sample_count, 3) << phase;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, StreamTest, testing::Values("cpu", "fake_cuda", "cuda"));

}  // namespace
}  // namespace attention::test
