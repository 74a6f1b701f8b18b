// Streams that make no sense, or for which there is no room.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "server/rpc/stream_call.h"
#include "tests/server/lifecycle/upload_fixture.h"

namespace attention::test {
namespace {

TEST_F(UploadTest, RefusesWhatIsNoStream) {
  Start();
  const v1::ComputeAttentionRequest request = SmallRequest();
  const v1::StreamAttentionStart start = StartOf(request);
  const auto with =
      [&](const std::function<void(v1::StreamAttentionStart&)>& change) {
        v1::StreamAttentionStart changed = start;
        change(changed);
        return CallStream(channel(), changed, {});
      };
  const auto chunk = [&](const v1::StreamAttentionRequest& message) {
    return CallStream(channel(), start, {message});
  };
  v1::StreamAttentionRequest second_start;
  *second_start.mutable_start() = start;
  const auto size = static_cast<int64_t>(request.key().size());
  const std::pair<Outcome, std::string> cases[] = {
      {chunk(second_start), "only the first message may have start"},
      {chunk(Chunk(v1::TENSOR_UNSPECIFIED, 0, "x")), "tensor must be"},
      {chunk(Chunk(v1::TENSOR_OUTPUT, 0, "x")), "tensor must be"},
      {chunk(Chunk(static_cast<v1::Tensor>(99), 0, "x")), "tensor must be"},
      {chunk(Chunk(v1::TENSOR_KEY, -1, "x")), "byte_offset -1"},
      {chunk(Chunk(v1::TENSOR_KEY, size, "x")), "must lie in"},
      {chunk(Chunk(v1::TENSOR_KEY, size - 1, "xy")), "must lie in"},
      {chunk(Chunk(v1::TENSOR_KEY, INT64_MAX, "x")), "must lie in"},
      {chunk(Chunk(v1::TENSOR_KEY, 0, std::string(kMaxChunkBytes + 1, 'x'))),
       "data (its size in bytes)"},
      {with([](auto& s) { s.mutable_request()->set_query("q"); }),
       "start.request.query"},
      {with([](auto& s) { s.mutable_request()->mutable_output_reference(); }),
       "start.request.output_reference"},
      {with([](auto& s) { s.set_key_byte_size(-1); }),
       "start.key_byte_size must be at least 0; got -1"},
      {with([](auto& s) { s.set_value_byte_size(s.value_byte_size() - 1); }),
       "value (its size in bytes)"},
      {with([](auto& s) { s.set_upload_id("short"); }), "upload_id"},
      {with([](auto& s) { s.set_upload_id(std::string(65, 'x')); }),
       "upload_id"},
      {with([](auto& s) {
         s.set_upload_id(kUploadId);
         s.mutable_lease_duration();
       }),
       "lease_duration"},
      {with([](auto& s) {
         s.set_upload_id(kUploadId);
         s.mutable_lease_duration()->set_seconds(301);
       }),
       "lease_duration"},
      {with([](auto& s) {
         s.set_upload_id(kUploadId);
         s.mutable_lease_duration()->set_seconds(1);
         s.mutable_lease_duration()->set_nanos(-1);
       }),
       "start.lease_duration.nanos must be of the same sign"},
  };
  for (const auto& [outcome, message] : cases) {
    ExpectRefused(outcome, grpc::StatusCode::INVALID_ARGUMENT,
                  "INVALID_REQUEST", message);
  }
  {
    StreamCaller caller(channel());
    caller.Send(Chunk(v1::TENSOR_KEY, 0, "x"));
    ExpectRefused(caller.Finish(), grpc::StatusCode::INVALID_ARGUMENT,
                  "INVALID_REQUEST", "first message must have start");
  }
  {
    StreamCaller caller(channel());
    v1::StreamAttentionRequest message = second_start;
    message.set_data("x");
    caller.Send(message);
    ExpectRefused(caller.Finish(), grpc::StatusCode::INVALID_ARGUMENT,
                  "INVALID_REQUEST", "must have no data");
  }
  {
    StreamCaller caller(channel());
    caller.CloseSide();
    ExpectRefused(caller.Finish(), grpc::StatusCode::INVALID_ARGUMENT,
                  "INVALID_REQUEST", "closed its side");
  }
  AwaitNoStreams();
  EXPECT_EQ(Metric("attention_uploads"), 0);
}

TEST_F(UploadTest, GapsAreBounded) {
  Start();
  RequestSpec spec;
  spec.key_tokens = 300;
  const v1::ComputeAttentionRequest request =
      RequestMaker(spec, random_).request();
  ASSERT_GT(request.key().size(), 2 * kMaxReceivedRanges);
  StreamCaller caller(channel());
  ASSERT_TRUE(caller.Start(StartOf(request)));
  for (size_t i = 0; i <= kMaxReceivedRanges; ++i) {
    caller.Send(Chunk(v1::TENSOR_KEY, static_cast<int64_t>(2 * i), "x"));
  }
  ExpectRefused(caller.Finish(), grpc::StatusCode::INVALID_ARGUMENT,
                "INVALID_REQUEST", "at most 4096 pieces");
}

TEST_F(UploadTest, RefusesWhatCanNeverFit) {
  AttentionServer::Options options;
  options.max_stream_bytes = 4096;
  Start(options);
  RequestSpec spec;
  spec.key_tokens = 100;
  ExpectRefused(
      CallStream(channel(), StartOf(RequestMaker(spec, random_).request()), {}),
      grpc::StatusCode::RESOURCE_EXHAUSTED, "REQUEST_TOO_LARGE",
      "at most 4096");
  // Inputs that fit, and an answer that does not.
  spec.key_tokens = 20;
  spec.query_tokens = 25;
  spec.return_weights = true;
  ExpectRefused(
      CallStream(channel(), StartOf(RequestMaker(spec, random_).request()), {}),
      grpc::StatusCode::RESOURCE_EXHAUSTED, "REQUEST_TOO_LARGE",
      "at most 4096");
  v1::StreamAttentionStart huge = StartOf(SmallRequest());
  huge.set_query_byte_size(INT64_MAX);
  huge.set_key_byte_size(INT64_MAX);
  ExpectRefused(CallStream(channel(), huge, {}),
                grpc::StatusCode::RESOURCE_EXHAUSTED, "REQUEST_TOO_LARGE",
                "over 2^63");
  EXPECT_EQ(device_.used_memory_bytes(), 0u);
}

// Said at the start, and over as soon as somebody lets go.
TEST_F(UploadTest, RefusesWhatDoesNotFitAtPresent) {
  const v1::ComputeAttentionRequest request = SmallRequest();
  const size_t bytes =
      request.query().size() + request.key().size() + request.value().size();
  AttentionServer::Options by_count;
  by_count.uploads.max_upload_count = 2;
  AttentionServer::Options by_bytes;
  by_bytes.uploads.max_bytes = 3 * bytes - 1;
  for (const AttentionServer::Options& options : {by_count, by_bytes}) {
    Start(options);
    const auto channel = Connect(tcp_address());
    auto first = std::make_unique<StreamCaller>(channel);
    ASSERT_TRUE(first->Start(StartOf(request)));
    first->ReadState();
    StreamCaller second(channel);
    ASSERT_TRUE(second.Start(StartOf(request)));
    second.ReadState();
    const Outcome refused = CallStream(channel, StartOf(request), {});
    ExpectRefused(refused, grpc::StatusCode::RESOURCE_EXHAUSTED, "QUEUE_FULL",
                  "uploads");
    EXPECT_EQ(refused.trailers.count("grpc-retry-pushback-ms"), 1u);
    EXPECT_EQ(Metric("attention_uploads"), 2);

    first.reset();
    AwaitMetric("attention_uploads", 1);
    StreamCaller third(channel);
    ASSERT_TRUE(third.Start(StartOf(request)));
    EXPECT_EQ(TotalBytes(third.ReadState()), 0);
    StopServer();
  }
}

TEST_F(UploadTest, MemoryOfTheDeviceIsReservedAtTheStart) {
  Start();
  RequestSpec spec;
  spec.key_tokens = 60'000;
  spec.kv_heads = spec.query_heads = 8;  // keys and values of 15 MB each
  const v1::ComputeAttentionRequest request =
      RequestMaker(spec, random_).request();
  StreamCaller first(channel());
  ASSERT_TRUE(first.Start(StartOf(request)));
  first.ReadState();
  const size_t used = device_.used_memory_bytes();
  StreamCaller second(channel());
  ASSERT_TRUE(second.Start(StartOf(request)));
  second.ReadState();
  ExpectRefused(CallStream(channel(), StartOf(request, kUploadId), {}),
                grpc::StatusCode::RESOURCE_EXHAUSTED, "QUEUE_FULL",
                "memory pool");
  // Not the results' alone either, and then nothing is left behind.
  spec.key_tokens = 1;
  spec.query_tokens = 10'000;
  spec.return_weights = true;
  spec.head_dim_v = 128;
  ExpectRefused(
      CallStream(channel(),
                 StartOf(RequestMaker(spec, random_).request(), kUploadId), {}),
      grpc::StatusCode::RESOURCE_EXHAUSTED, "QUEUE_FULL", "memory pool");
  while (device_.used_memory_bytes() != 2 * used) std::this_thread::yield();
  EXPECT_EQ(Metric("attention_uploads"), 2);
}

TEST_F(UploadTest, ManyStartsAreBounded) {
  AttentionServer::Options options;
  options.uploads.max_upload_count = 50;
  Start(options);
  const v1::StreamAttentionStart start = StartOf(SmallRequest());
  std::vector<std::unique_ptr<StreamCaller>> callers;
  int refused = 0;
  for (int i = 0; i < 1000; ++i) {
    auto caller = std::make_unique<StreamCaller>(channel());
    caller->Start(start);
    if (i < 50) {
      caller->ReadState();
      callers.push_back(std::move(caller));
    } else {
      refused += ReasonOf(caller->Finish().status) == "QUEUE_FULL" ? 1 : 0;
    }
  }
  EXPECT_EQ(refused, 950);
  EXPECT_EQ(Metric("attention_uploads"), 50);
  callers.clear();
  AwaitNoStreams();
  EXPECT_EQ(Metric("attention_uploads"), 0);
}

class StreamLimitTest : public ServerTest {};

// A caller that takes no larger messages than the server gets the answer.
TEST_F(StreamLimitTest, AnswersComeInMessagesOfTheLimit) {
  for (const int limit : {1024, 4096, 20'000}) {
    AttentionServer::Options options;
    options.max_message_bytes = limit;
    StartServer(options);
    RequestSpec spec;
    spec.query_tokens = 200;
    spec.return_log_sum_exp = true;
    const RequestMaker maker(spec, random_);
    ASSERT_GT(maker.request().query().size(), 20'000u);
    grpc::ChannelArguments arguments;
    // The smallest limit has no room for a chunk beside the metadata.
    arguments.SetMaxReceiveMessageSize(std::max(limit, 2048));
    const Outcome outcome = CallStream(
        grpc::CreateCustomChannel(
            tcp_address(), grpc::InsecureChannelCredentials(), arguments),
        StartOf(maker.request()), ChunksOf(maker.request(), 700));
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    EXPECT_TRUE(maker.Check(outcome.response));
    StopServer();
  }
}

}  // namespace
}  // namespace attention::test
