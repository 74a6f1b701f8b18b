// Streams that break, misbehave, take turns, wait, or come when there is no
// room.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "server/rpc/stream_call.h"
#include "tests/server/lifecycle/stream_fixture.h"
#include "tests/server/metrics/metric_reader.h"
#include "tests/support/fake_clock.h"

namespace attention::test {
namespace {

using ::testing::HasSubstr;

const std::string kId(16, 'u');

int64_t TotalBytes(
    const google::protobuf::RepeatedPtrField<v1::ByteRange>& ranges) {
  int64_t bytes = 0;
  for (const v1::ByteRange& range : ranges) bytes += range.byte_size();
  return bytes;
}

int64_t TotalBytes(const v1::UploadState& state) {
  return TotalBytes(state.query_ranges()) + TotalBytes(state.key_ranges()) +
         TotalBytes(state.value_ranges());
}

bool Has(const v1::UploadState& state, const v1::StreamAttentionRequest& chunk) {
  const auto& ranges = chunk.tensor() == v1::TENSOR_QUERY ? state.query_ranges()
                       : chunk.tensor() == v1::TENSOR_KEY
                           ? state.key_ranges()
                           : state.value_ranges();
  const int64_t begin = chunk.byte_offset();
  const int64_t end = begin + static_cast<int64_t>(chunk.data().size());
  return std::any_of(ranges.begin(), ranges.end(), [&](const auto& range) {
    return range.byte_offset() <= begin &&
           end <= range.byte_offset() + range.byte_size();
  });
}

// With a device and a clock that the test moves.
class UploadTest : public ServerTest {
 protected:
  // Before the device.
  ~UploadTest() override { StopServer(); }

  void Start(AttentionServer::Options options = {}) {
    StartServer(options, &device_, nullptr, &clock_);
  }

  double Metric(const std::string& name,
                const MetricReader::Labels& labels = {}) {
    return MetricReader(server().metrics()).Sum(name, labels);
  }

  void AwaitMetric(const std::string& name, double value) {
    while (Metric(name) != value) std::this_thread::yield();
  }
  // Blocks until the server is done with every stream.
  void AwaitNoStreams() {
    AwaitMetric("attention_requests_in_flight", 0);
    // The streams' memory goes with them, a moment later.
    while (device_.used_memory_bytes() != expected_memory_) {
      std::this_thread::yield();
    }
  }

  void ExpectRefused(const Outcome& outcome, grpc::StatusCode code,
                     const std::string& reason, const std::string& message) {
    EXPECT_EQ(outcome.status.error_code(), code);
    EXPECT_EQ(ReasonOf(outcome.status), reason);
    EXPECT_THAT(outcome.status.error_message(), HasSubstr(message));
  }

  FakeClock clock_;
  PuppetDevice device_{"puppet:0", 1, size_t{1} << 26};
  size_t expected_memory_ = 0;  // of uploads that wait
};

TEST_F(UploadTest, WaitsForTheTimeOfItsLease) {
  Start();
  const v1::ComputeAttentionRequest request = SmallRequest();
  v1::StreamAttentionStart start = StartOf(request, kId);
  start.mutable_lease_duration()->set_seconds(10);
  const auto chunks = ChunksOf(request, 64);
  int64_t sent = 0;
  {
    StreamCaller caller(channel());
    ASSERT_TRUE(caller.Start(start));
    const v1::UploadState state = caller.ReadState();
    EXPECT_EQ(TotalBytes(state), 0);
    EXPECT_EQ(state.lease_duration().seconds(), 10);
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(caller.Send(chunks[i]));
      sent += static_cast<int64_t>(chunks[i].data().size());
    }
    // What a caller sends before it closes its side arrives.
    caller.CloseSide();
    ExpectRefused(caller.Finish(), grpc::StatusCode::INVALID_ARGUMENT,
                  "INVALID_REQUEST", "closed its side");
  }
  clock_.Advance(absl::Seconds(10) - absl::Nanoseconds(1));
  server().ReleaseExpired();
  {
    StreamCaller caller(channel());
    ASSERT_TRUE(caller.Start(start));
    EXPECT_EQ(TotalBytes(caller.ReadState()), sent);
    caller.CloseSide();
    EXPECT_FALSE(caller.Finish().status.ok());
  }
  EXPECT_EQ(Metric("attention_uploads"), 1);
  EXPECT_EQ(Metric("attention_upload_bytes"),
            request.query().size() + request.key().size() +
                request.value().size());
  clock_.Advance(absl::Seconds(10));
  server().ReleaseExpired();
  AwaitNoStreams();
  EXPECT_EQ(Metric("attention_uploads"), 0);
  EXPECT_EQ(Metric("attention_upload_bytes"), 0);
  EXPECT_EQ(
      Metric("attention_upload_events_total", {{"event", "expired"}}), 1);

  StreamCaller caller(channel());
  ASSERT_TRUE(caller.Start(start));
  EXPECT_EQ(TotalBytes(caller.ReadState()), 0);
  EXPECT_EQ(Metric("attention_upload_events_total", {{"event", "started"}}), 2);
  EXPECT_EQ(Metric("attention_upload_events_total", {{"event", "resumed"}}), 1);
}

// Also when nobody has come to clear up.
TEST_F(UploadTest, ExpiredUploadsAreNotToBeHad) {
  Start();
  const v1::ComputeAttentionRequest request = SmallRequest();
  for (int i = 0; i < 2; ++i) {
    StreamCaller caller(channel());
    ASSERT_TRUE(caller.Start(StartOf(request, kId)));
    const v1::UploadState state = caller.ReadState();
    EXPECT_EQ(TotalBytes(state), 0);
    EXPECT_EQ(state.lease_duration().seconds(), 30);
    ASSERT_TRUE(caller.Send(ChunksOf(request, 64)[0]));
    caller.CloseSide();
    EXPECT_FALSE(caller.Finish().status.ok());
    clock_.Advance(absl::Seconds(30));
  }
}

TEST_F(UploadTest, WithoutAnIdNothingOutlivesTheStream) {
  Start();
  const v1::ComputeAttentionRequest request = SmallRequest();
  StreamCaller caller(channel());
  ASSERT_TRUE(caller.Start(StartOf(request)));
  EXPECT_FALSE(caller.ReadState().has_lease_duration());
  EXPECT_EQ(Metric("attention_uploads"), 1);
  EXPECT_GT(device_.used_memory_bytes(), 0u);
  ASSERT_TRUE(caller.Send(ChunksOf(request, 64)[0]));
  caller.Cancel();
  EXPECT_EQ(caller.Finish().status.error_code(), grpc::StatusCode::CANCELLED);
  AwaitNoStreams();
  EXPECT_EQ(Metric("attention_uploads"), 0);
}

TEST_F(UploadTest, ANewStreamTakesOver) {
  Start();
  const v1::ComputeAttentionRequest request = SmallRequest();
  const auto chunks = ChunksOf(request, 64);
  StreamCaller old(channel());
  ASSERT_TRUE(old.Start(StartOf(request, kId)));
  old.ReadState();
  ASSERT_TRUE(old.Send(chunks[0]));
  while (Metric("attention_bytes_total", {{"direction", "received"}}) <
         chunks[0].ByteSizeLong() + StartOf(request, kId).ByteSizeLong()) {
    std::this_thread::yield();
  }

  StreamCaller next(channel());
  ASSERT_TRUE(next.Start(StartOf(request, kId)));
  const v1::UploadState state = next.ReadState();
  ExpectRefused(old.Finish(), grpc::StatusCode::ABORTED, "UPLOAD_TAKEN_OVER",
                "another stream");
  for (const auto& chunk : chunks) {
    if (!Has(state, chunk)) {
      ASSERT_TRUE(next.Send(chunk));
    }
  }
  device_.AwaitInFlight(1);
  device_.Finish();
  EXPECT_TRUE(next.Finish().status.ok());
  AwaitNoStreams();
  EXPECT_EQ(Metric("attention_uploads"), 0);
}

TEST_F(UploadTest, AnotherStartDoesNotDisturb) {
  Start();
  const v1::ComputeAttentionRequest request = SmallRequest();
  StreamCaller caller(channel());
  ASSERT_TRUE(caller.Start(StartOf(request, kId)));
  caller.ReadState();
  v1::StreamAttentionStart other = StartOf(request, kId);
  other.mutable_request()->set_scale(3);
  ExpectRefused(CallStream(channel(), other, {}),
                grpc::StatusCode::ALREADY_EXISTS, "INVALID_REQUEST",
                "upload_id");
  for (const auto& chunk : ChunksOf(request, 64)) {
    ASSERT_TRUE(caller.Send(chunk));
  }
  device_.AwaitInFlight(1);
  device_.Finish();
  EXPECT_TRUE(caller.Finish().status.ok());
}

// The answer was lost on the way: the inputs are still there.
TEST_F(UploadTest, ComputesAgainAfterABreak) {
  Start();
  const v1::ComputeAttentionRequest request = SmallRequest();
  {
    StreamCaller caller(channel());
    ASSERT_TRUE(caller.Start(StartOf(request, kId)));
    for (const auto& chunk : ChunksOf(request, 64)) {
      ASSERT_TRUE(caller.Send(chunk));
    }
    device_.AwaitInFlight(1);
  }
  AwaitMetric("attention_requests_in_flight", 0);
  StreamCaller caller(channel());
  ASSERT_TRUE(caller.Start(StartOf(request, kId)));
  EXPECT_EQ(TotalBytes(caller.ReadState()),
            static_cast<int64_t>(request.query().size() +
                                 request.key().size() +
                                 request.value().size()));
  device_.Finish();  // of the first stream
  device_.AwaitInFlight(1);
  device_.Finish();
  EXPECT_TRUE(caller.Finish().status.ok());
  AwaitNoStreams();
  EXPECT_EQ(Metric("attention_uploads"), 0);
}

TEST_F(UploadTest, AFullQueueKeepsTheUpload) {
  AttentionServer::Options options;
  options.scheduling.max_queued_requests = 1;
  Start(options);
  std::future<Outcome> running = CallInBackground(SmallRequest());
  device_.AwaitInFlight(1);
  std::future<Outcome> queued = CallInBackground(SmallRequest());
  AwaitMetric("attention_queue_requests", 1);

  const v1::ComputeAttentionRequest request = SmallRequest();
  const Outcome refused =
      CallStream(channel(), StartOf(request, kId), ChunksOf(request, 64));
  ExpectRefused(refused, grpc::StatusCode::RESOURCE_EXHAUSTED, "QUEUE_FULL",
                "queue is full");
  EXPECT_EQ(refused.trailers.count("grpc-retry-pushback-ms"), 1u);

  device_.Finish();
  device_.AwaitInFlight(1);
  device_.Finish();
  EXPECT_TRUE(running.get().status.ok());
  EXPECT_TRUE(queued.get().status.ok());
  std::future<Outcome> again = std::async(std::launch::async, [&] {
    return CallStream(channel(), StartOf(request, kId), {});
  });
  device_.AwaitInFlight(1);
  device_.Finish();
  EXPECT_TRUE(again.get().status.ok());
}

TEST_F(UploadTest, RefusesWhatIsNoStream) {
  Start();
  const v1::ComputeAttentionRequest request = SmallRequest();
  const v1::StreamAttentionStart start = StartOf(request);
  const auto with = [&](const std::function<void(v1::StreamAttentionStart&)>&
                            change) {
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
         s.set_upload_id(kId);
         s.mutable_lease_duration();
       }),
       "lease_duration"},
      {with([](auto& s) {
         s.set_upload_id(kId);
         s.mutable_lease_duration()->set_seconds(301);
       }),
       "lease_duration"},
      {with([](auto& s) {
         s.set_upload_id(kId);
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
      grpc::StatusCode::RESOURCE_EXHAUSTED, "REQUEST_TOO_LARGE", "at most 4096");
  // Inputs that fit, and an answer that does not.
  spec.key_tokens = 20;
  spec.query_tokens = 25;
  spec.return_weights = true;
  ExpectRefused(
      CallStream(channel(), StartOf(RequestMaker(spec, random_).request()), {}),
      grpc::StatusCode::RESOURCE_EXHAUSTED, "REQUEST_TOO_LARGE", "at most 4096");
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
  ExpectRefused(CallStream(channel(), StartOf(request, kId), {}),
                grpc::StatusCode::RESOURCE_EXHAUSTED, "QUEUE_FULL",
                "memory pool");
  // Not the results' alone either, and then nothing is left behind.
  spec.key_tokens = 1;
  spec.query_tokens = 10'000;
  spec.return_weights = true;
  spec.head_dim_v = 128;
  ExpectRefused(CallStream(channel(),
                           StartOf(RequestMaker(spec, random_).request(), kId),
                           {}),
                grpc::StatusCode::RESOURCE_EXHAUSTED, "QUEUE_FULL",
                "memory pool");
  while (device_.used_memory_bytes() != 2 * used) std::this_thread::yield();
  EXPECT_EQ(Metric("attention_uploads"), 2);
}

TEST_F(UploadTest, StreamsThatDoNotMoveAreEnded) {
  Start();
  const v1::ComputeAttentionRequest request = SmallRequest();
  StreamCaller silent(channel());
  AwaitMetric("attention_requests_in_flight", 1);
  StreamCaller started(channel());
  ASSERT_TRUE(started.Start(StartOf(request)));
  started.ReadState();
  StreamCaller computed(channel());
  ASSERT_TRUE(computed.Start(StartOf(request)));
  for (const auto& chunk : ChunksOf(request, 64)) {
    ASSERT_TRUE(computed.Send(chunk));
  }
  device_.AwaitInFlight(1);

  clock_.Advance(absl::Seconds(30) - absl::Nanoseconds(1));
  server().ReleaseExpired();
  EXPECT_EQ(Metric("attention_requests_in_flight"), 3);
  clock_.Advance(absl::Nanoseconds(1));
  server().ReleaseExpired();
  for (StreamCaller* caller : {&silent, &started}) {
    ExpectRefused(caller->Finish(), grpc::StatusCode::ABORTED, "STREAM_IDLE",
                  "nothing has moved");
  }
  device_.Finish();
  EXPECT_TRUE(computed.Finish().status.ok());
  AwaitNoStreams();
  EXPECT_EQ(Metric("attention_uploads"), 0);
}

// Whatever the stage, and nothing stays behind.
TEST_F(UploadTest, CancellationAtEveryStage) {
  Start();
  const v1::ComputeAttentionRequest request = SmallRequest();
  const auto chunks = ChunksOf(request, 64);
  std::future<Outcome> running;
  for (int stage = 0; stage < 4; ++stage) {
    StreamCaller caller(channel());
    if (stage >= 1) {
      ASSERT_TRUE(caller.Start(StartOf(request)));
      caller.ReadState();
    }
    if (stage == 1) {
      ASSERT_TRUE(caller.Send(chunks[0]));
    }
    if (stage == 2) {  // in the queue
      running = CallInBackground(SmallRequest());
      device_.AwaitInFlight(1);
    }
    if (stage >= 2) {
      for (const auto& chunk : chunks) ASSERT_TRUE(caller.Send(chunk));
    }
    if (stage == 2) AwaitMetric("attention_queue_requests", 1);
    if (stage == 3) device_.AwaitInFlight(1);
    caller.Cancel();
    EXPECT_EQ(caller.Finish().status.error_code(), grpc::StatusCode::CANCELLED);
    if (stage == 2) {
      AwaitMetric("attention_queue_requests", 0);
      device_.Finish();
      EXPECT_TRUE(running.get().status.ok());
    }
    AwaitMetric("attention_requests_in_flight", 0);
    if (stage == 3) device_.Finish();
    AwaitNoStreams();
    EXPECT_EQ(Metric("attention_uploads"), 0) << stage;
  }
}

TEST_F(UploadTest, DeadlinesHoldForStreams) {
  Start();
  StreamCaller caller(channel(), [](grpc::ClientContext& context) {
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Milliseconds(50)));
  });
  ASSERT_TRUE(caller.Start(StartOf(SmallRequest())));
  EXPECT_EQ(caller.Finish().status.error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  AwaitNoStreams();
  EXPECT_EQ(Metric("attention_uploads"), 0);
}

TEST_F(UploadTest, AFailedDeviceTakesNoUploads) {
  Start();
  device_.SetHealth(absl::InternalError("an illegal address"));
  ExpectRefused(CallStream(channel(), StartOf(SmallRequest()), {}),
                grpc::StatusCode::UNAVAILABLE, "DEVICE_FAILED",
                "an illegal address");
}

// Streams under way may finish; those that do not move are cut off in the end.
TEST_F(UploadTest, DrainWaitsForStreams) {
  Start();
  const v1::ComputeAttentionRequest request = SmallRequest();
  StreamCaller moving(channel());
  ASSERT_TRUE(moving.Start(StartOf(request)));
  moving.ReadState();
  std::future<bool> drained = std::async(
      std::launch::async, [&] { return server().Drain(absl::Seconds(30)); });
  for (const auto& chunk : ChunksOf(request, 64)) {
    ASSERT_TRUE(moving.Send(chunk));
  }
  device_.AwaitInFlight(1);
  device_.Finish();
  EXPECT_TRUE(moving.Finish().status.ok());
  EXPECT_TRUE(drained.get());
}

TEST_F(UploadTest, DrainCutsOffWhatDoesNotMove) {
  Start();
  StreamCaller caller(channel());
  ASSERT_TRUE(caller.Start(StartOf(SmallRequest(), kId)));
  caller.ReadState();
  EXPECT_FALSE(server().Drain(absl::Milliseconds(100)));
  EXPECT_FALSE(caller.Finish().status.ok());
  StopServer();
  EXPECT_EQ(device_.used_memory_bytes(), 0u);
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

class ResumeTest : public ServerTest {};

// The right answer, wherever a stream breaks and however often.
TEST_F(ResumeTest, GoesOnAfterBreaksAtRandomPoints) {
  StartServer();
  for (int round = 0; round < 20; ++round) {
    RequestSpec spec;
    spec.query_tokens = 20;
    spec.key_tokens = 50;
    spec.return_log_sum_exp = true;
    const RequestMaker maker(spec, random_);
    auto chunks = ChunksOf(maker.request(), 100);
    std::shuffle(chunks.begin(), chunks.end(), random_);
    const std::string id = absl::StrCat("a random id like ", round);
    const v1::StreamAttentionStart start = StartOf(maker.request(), id);
    int64_t known = 0;
    for (int attempt = 0;; ++attempt) {
      StreamCaller caller(channel());
      ASSERT_TRUE(caller.Start(start));
      const v1::UploadState state = caller.ReadState();
      // What the server had, it still has.
      ASSERT_GE(TotalBytes(state), known);
      known = TotalBytes(state);
      std::vector<v1::StreamAttentionRequest> left;
      for (const auto& chunk : chunks) {
        if (!Has(state, chunk)) left.push_back(chunk);
      }
      // Never all: the server would not wait for the end of the stream.
      ASSERT_FALSE(left.empty());
      const size_t count =
          std::uniform_int_distribution<size_t>(0, left.size() - 1)(random_);
      const bool finish = attempt == 6;
      for (size_t i = 0; i < (finish ? left.size() : count); ++i) {
        ASSERT_TRUE(caller.Send(left[i]));
      }
      if (!finish) continue;  // breaks
      const Outcome outcome = caller.Finish();
      ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
      ASSERT_TRUE(maker.Check(outcome.response));
      break;
    }
  }
}

// Several callers go on with the same uploads at once, and some give up: whoever
// gets an answer gets the right one.
TEST_F(ResumeTest, Storm) {
  StartServer();
  RequestSpec spec;
  spec.query_tokens = 20;
  spec.key_tokens = 50;
  std::vector<RequestMaker> makers;
  for (int i = 0; i < 3; ++i) makers.emplace_back(spec, random_);
  std::atomic<int> answers = 0;
  const std::shared_ptr<grpc::Channel> shared = channel();
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, seed = random_()] {
      std::mt19937_64 random(seed);
      for (int i = 0; i < 25; ++i) {
        const size_t which = random() % makers.size();
        const v1::ComputeAttentionRequest& request = makers[which].request();
        StreamCaller caller(shared);
        caller.Start(StartOf(request, std::string(16, "abc"[which])));
        for (const auto& chunk : ChunksOf(request, 200)) {
          if (!caller.Send(chunk)) break;
          if (random() % 60 == 0) caller.Cancel();
        }
        const Outcome outcome = caller.Finish();
        if (outcome.status.ok()) {
          EXPECT_TRUE(makers[which].Check(outcome.response));
          ++answers;
        } else {
          EXPECT_THAT(outcome.status.error_code(),
                      testing::AnyOf(grpc::StatusCode::CANCELLED,
                                     grpc::StatusCode::ABORTED))
              << outcome.status.error_message();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(answers, 0);
}

}  // namespace
}  // namespace attention::test
