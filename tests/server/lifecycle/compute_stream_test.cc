// StreamComputeAttention over real connections.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/rpc/pipelined_stream.h"
#include "tests/server/lifecycle/server_fixture.h"
#include "tests/server/metrics/metric_reader.h"

namespace attention::test {
namespace {

using Code = grpc::StatusCode;
using Request = v1::StreamComputeAttentionRequest;
using Response = v1::StreamComputeAttentionResponse;
using ::testing::HasSubstr;

constexpr char kMethod[] =
    "/attention.v1.AttentionService/StreamComputeAttention";

// An open stream.
class Stream {
 public:
  explicit Stream(std::shared_ptr<grpc::Channel> channel,
                  absl::Duration timeout = absl::Seconds(60),
                  const std::string& tenant = "")
      : stub_(v1::AttentionService::NewStub(std::move(channel))) {
    context_.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    if (!tenant.empty()) context_.AddMetadata("attention-tenant", tenant);
    call_ = stub_->StreamComputeAttention(&context_);
  }

  bool Send(int64_t tag, const v1::ComputeAttentionRequest& request) {
    Request message;
    message.set_tag(tag);
    *message.mutable_request() = request;
    return call_->Write(message);
  }
  bool Read(Response& response) { return call_->Read(&response); }
  // The next answer; with a tag of -1 there is none.
  Response Read() {
    Response response;
    if (!Read(response)) response.set_tag(-1);
    return response;
  }
  void CloseSending() { call_->WritesDone(); }
  grpc::Status End() {
    EXPECT_EQ(Read().tag(), -1) << "an answer too many";
    return call_->Finish();
  }
  void Cancel() { context_.TryCancel(); }

 private:
  const std::unique_ptr<v1::AttentionService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<Request, Response>> call_;
};

class ComputeStreamTest : public BackendServerTest {
 protected:
  // Sends all before it waits for answers.
  void CheckAll(const std::vector<RequestMaker>& makers,
                const std::string& address) {
    Stream stream(Connect(address));
    std::thread writer([&] {
      for (size_t i = 0; i < makers.size(); ++i) {
        ASSERT_TRUE(stream.Send(static_cast<int64_t>(i), makers[i].request()));
      }
      stream.CloseSending();
    });
    std::set<int64_t> answered;
    for (Response response; stream.Read(response);) {
      EXPECT_FALSE(response.has_error()) << response.error().DebugString();
      EXPECT_TRUE(answered.insert(response.tag()).second) << response.tag();
      EXPECT_TRUE(makers.at(response.tag()).Check(response.response()));
    }
    writer.join();
    EXPECT_TRUE(stream.End().ok());
    EXPECT_EQ(answered.size(), makers.size());
  }
};

TEST_P(ComputeStreamTest, PipelinedRequestsOfAnyKindGetTheirOwnAnswers) {
  std::vector<RequestMaker> makers;
  for (int i = 0; i < 5 * kMaxPipelinedMessages; ++i) {
    makers.emplace_back(RandomSpec(random_), random_);
  }
  CheckAll(makers, tcp_address());
  CheckAll(makers, unix_address());
}

TEST_P(ComputeStreamTest, SmallestShapes) {
  std::vector<RequestMaker> makers;
  for (int64_t queries : {0, 1}) {
    for (int64_t keys : {0, 1}) {
      for (DataType type :
           {DataType::kFloat32, DataType::kFloat16, DataType::kBFloat16}) {
        RequestSpec spec;
        spec.data_type = type;
        spec.query_tokens = queries;
        spec.key_tokens = keys;
        AskForEverything(spec);
        makers.emplace_back(spec, random_);
      }
    }
  }
  CheckAll(makers, unix_address());
}

// Requests and answers of many slices among small ones.
TEST_P(ComputeStreamTest, LargeRequestsGoAlongWithSmallOnes) {
  std::vector<RequestMaker> makers;
  for (int i = 0; i < 24; ++i) {
    RequestSpec spec;
    if (i % 4 == 0) {
      spec.query_tokens = 300;
      spec.key_tokens = 900;
      spec.head_dim_qk = 64;
      spec.head_dim_v = 100;
    }
    makers.emplace_back(spec, random_);
  }
  CheckAll(makers, tcp_address());
}

TEST_P(ComputeStreamTest, AnErrorOfAMessageLeavesTheStreamAlone) {
  Stream stream(channel());
  v1::ComputeAttentionRequest request = SmallRequest();
  request.mutable_key()->pop_back();
  ASSERT_TRUE(stream.Send(5, request));
  Response response = stream.Read();
  EXPECT_EQ(response.tag(), 5);
  EXPECT_EQ(response.error().code(), Code::INVALID_ARGUMENT);
  EXPECT_EQ(response.error().reason(), "INVALID_REQUEST");
  EXPECT_THAT(response.error().message(), HasSubstr("key"));
  EXPECT_FALSE(response.has_response());

  request = SmallRequest();
  request.set_algorithm(v1::ALGORITHM_STREAMING);
  request.set_return_weights(true);
  ASSERT_TRUE(stream.Send(-6, request));
  response = stream.Read();
  EXPECT_EQ(response.tag(), -6);
  EXPECT_EQ(response.error().reason(), "UNSUPPORTED");

  ASSERT_TRUE(stream.Send(0, {}));  // nothing on the wire but an empty request
  response = stream.Read();
  EXPECT_EQ(response.tag(), 0);
  EXPECT_EQ(response.error().code(), Code::INVALID_ARGUMENT);

  const RequestMaker good(RequestSpec(), random_);
  ASSERT_TRUE(stream.Send(5, good.request()));  // tags are the caller's affair
  response = stream.Read();
  EXPECT_EQ(response.tag(), 5);
  EXPECT_TRUE(good.Check(response.response()));
  stream.CloseSending();
  EXPECT_TRUE(stream.End().ok());
}

TEST_P(ComputeStreamTest, WhatIsNoMessageEndsTheStream) {
  for (const std::string& message :
       {std::string("\xff"), std::string("\x12\x05\x08", 3),  // past the end
        std::string("\x12\x02\x08\x80", 4)}) {  // a field that is cut off
    const grpc::Status status = CallWithBytes(channel(), kMethod, message);
    EXPECT_EQ(status.error_code(), Code::INVALID_ARGUMENT);
    EXPECT_EQ(ReasonOf(status), "INVALID_REQUEST");
    EXPECT_EQ(status.error_message(),
              "the message is not a valid StreamComputeAttentionRequest");
  }
}

TEST_P(ComputeStreamTest, CountsEveryMessageAndByte) {
  Request message;
  message.set_tag(3);
  *message.mutable_request() = SmallRequest();
  size_t received = 0;
  size_t sent = 0;
  Stream stream(channel());
  for (int i = 0; i < 5; ++i) {
    if (i == 4) message.mutable_request()->clear_data_type();
    ASSERT_TRUE(stream.Send(3, message.request()));
    const Response response = stream.Read();
    EXPECT_EQ(response.has_error(), i == 4);
    received += message.ByteSizeLong();
    sent += response.ByteSizeLong();
  }
  stream.CloseSending();
  EXPECT_TRUE(stream.End().ok());
  const MetricReader metrics(server().metrics());
  EXPECT_EQ(metrics.Sum("attention_requests_started_total"), 5);
  EXPECT_EQ(metrics.Sum("attention_requests_total", {{"code", "OK"}}), 4);
  EXPECT_EQ(
      metrics.Sum("attention_requests_total", {{"code", "INVALID_ARGUMENT"}}),
      1);
  EXPECT_EQ(metrics.Sum("attention_requests_in_flight"), 0);
  EXPECT_EQ(metrics.Sum("attention_bytes_total", {{"direction", "received"}}),
            received);
  EXPECT_EQ(metrics.Sum("attention_bytes_total", {{"direction", "sent"}}),
            sent);
  const std::string config =
      metrics.LabelValues("attention_queue_requests", "config").front();
  for (const char* phase : {"receive", "queue", "compute", "send", "total"}) {
    const auto durations =
        metrics.Histogram("attention_phase_duration_seconds",
                          {{"phase", phase}, {"config", config}});
    ASSERT_TRUE(durations.has_value()) << phase;
    EXPECT_EQ(durations->sample_count, 4) << phase;
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, ComputeStreamTest, testing::Values("cpu"));
INSTANTIATE_TEST_SUITE_P(Cuda, ComputeStreamTest, testing::Values("cuda"));

// On a device that finishes what the test says, one work at a time.
class QueuedStreamTest : public ServerTest {
 protected:
  void Start(AttentionServer::Options options = {}) {
    options.scheduling.max_batch_requests = 1;
    StartServer(options, &device_);
  }

  v1::ComputeAttentionRequest OfPriority(int priority) {
    v1::ComputeAttentionRequest request = SmallRequest();
    request.set_priority(priority);
    return request;
  }

  double Metric(const std::string& name) {
    return MetricReader(server().metrics()).Sum(name);
  }

  void Await(const std::string& metric, double value) {
    while (Metric(metric) != value) std::this_thread::yield();
  }

  // Finishes what the device still gets meanwhile.
  void DrainAndFinish() {
    std::future<bool> drained = std::async(std::launch::async, [this] {
      return server().Drain(absl::Minutes(5));
    });
    while (drained.wait_for(std::chrono::seconds(0)) !=
           std::future_status::ready) {
      device_.Finish();
      std::this_thread::yield();
    }
    EXPECT_TRUE(drained.get());
  }

  PuppetDevice device_;
};

TEST_F(QueuedStreamTest, AnswersOvertakeByThePriorityOfEachMessage) {
  Start();
  Stream stream(channel());
  ASSERT_TRUE(stream.Send(1, OfPriority(0)));
  device_.AwaitInFlight(1);
  ASSERT_TRUE(stream.Send(2, OfPriority(-3)));
  Await("attention_queue_requests", 1);
  ASSERT_TRUE(stream.Send(3, OfPriority(8)));
  ASSERT_TRUE(stream.Send(4, OfPriority(101)));  // out of range
  EXPECT_EQ(stream.Read().tag(), 4);
  Await("attention_queue_requests", 2);
  for (const int64_t tag : {1, 3, 2}) {
    device_.AwaitInFlight(1);
    device_.Finish();
    EXPECT_EQ(stream.Read().tag(), tag);
  }
  stream.CloseSending();
  EXPECT_TRUE(stream.End().ok());
}

TEST_F(QueuedStreamTest, NoMoreMessagesAreTakenThanMayBeUnanswered) {
  Start();
  Stream stream(channel());
  constexpr int kMessages = kMaxPipelinedMessages + 10;
  const v1::ComputeAttentionRequest request = SmallRequest();
  for (int i = 0; i < kMessages; ++i) ASSERT_TRUE(stream.Send(i, request));
  Await("attention_queue_requests", kMaxPipelinedMessages - 1);
  EXPECT_EQ(Metric("attention_requests_started_total"), kMaxPipelinedMessages);
  // Other streams have their own.
  Stream other(channel());
  ASSERT_TRUE(other.Send(1, request));
  Await("attention_queue_requests", kMaxPipelinedMessages);
  for (int i = 0; i < kMessages + 1; ++i) {
    device_.AwaitInFlight(1);
    device_.Finish();
  }
  for (int i = 0; i < kMessages; ++i) EXPECT_FALSE(stream.Read().has_error());
  EXPECT_EQ(other.Read().tag(), 1);
  stream.CloseSending();
  EXPECT_TRUE(stream.End().ok());
}

// Nor when those that are not answered, or whose answers nobody takes, have so
// many bytes.
TEST_F(QueuedStreamTest, NoMoreBytesAreTakenThanMayBeUnanswered) {
  RequestSpec spec;
  spec.query_tokens = 5000;
  spec.key_tokens = 1;
  spec.head_dim_qk = spec.head_dim_v = 256;
  const RequestMaker maker(spec, random_);
  const v1::ComputeAttentionRequest request = maker.request();
  const size_t moved = 2 * request.query().size() + 2 * request.key().size();
  const auto taken = static_cast<int>((kMaxPipelinedBytes + moved - 1) / moved);
  const int messages = 2 * taken + 1;
  ASSERT_GT(taken, 1);
  ASSERT_LT(messages, kMaxPipelinedMessages);
  Start();
  Stream stream(channel());
  std::thread writer([&] {
    for (int i = 0; i < messages; ++i) EXPECT_TRUE(stream.Send(i, request));
  });
  Await("attention_queue_requests", taken - 1);
  // Computed, but not taken: it still counts.
  device_.AwaitInFlight(1);
  device_.Finish();
  Await("attention_queue_requests", taken - 2);
  EXPECT_EQ(Metric("attention_requests_started_total"), taken);
  for (int i = 1; i < messages; ++i) {
    EXPECT_EQ(stream.Read().tag(), i - 1);
    device_.AwaitInFlight(1);
    device_.Finish();
  }
  EXPECT_EQ(stream.Read().tag(), messages - 1);
  writer.join();
  stream.CloseSending();
  EXPECT_TRUE(stream.End().ok());
  EXPECT_EQ(Metric("attention_requests_started_total"), messages);
}

TEST_F(QueuedStreamTest, AFullQueueIsTheMessagesError) {
  AttentionServer::Options options;
  options.scheduling.max_queued_requests = 1;
  Start(options);
  Stream stream(channel());
  ASSERT_TRUE(stream.Send(1, SmallRequest()));
  device_.AwaitInFlight(1);
  ASSERT_TRUE(stream.Send(2, SmallRequest()));
  Await("attention_queue_requests", 1);
  ASSERT_TRUE(stream.Send(3, SmallRequest()));
  const Response refused = stream.Read();
  EXPECT_EQ(refused.tag(), 3);
  EXPECT_EQ(refused.error().code(), Code::RESOURCE_EXHAUSTED);
  EXPECT_EQ(refused.error().reason(), "QUEUE_FULL");
  EXPECT_TRUE(refused.error().has_retry_delay());
  for (const int64_t tag : {1, 2}) {
    device_.AwaitInFlight(1);
    device_.Finish();
    EXPECT_EQ(stream.Read().tag(), tag);
  }
}

TEST_F(QueuedStreamTest, TenantsTakeTurns) {
  Start();
  Stream a(channel(), absl::Seconds(60), "a");
  Stream b(channel(), absl::Seconds(60), "b");
  ASSERT_TRUE(a.Send(0, SmallRequest()));
  device_.AwaitInFlight(1);
  // One by one: messages that may overtake each other may be queued so.
  for (const int64_t tag : {1, 2, 3}) {
    ASSERT_TRUE(a.Send(tag, SmallRequest()));
    Await("attention_queue_requests", static_cast<double>(tag));
  }
  ASSERT_TRUE(b.Send(4, SmallRequest()));
  Await("attention_queue_requests", 4);
  // After those of a that had their turn before b came.
  for (int i = 0; i < 3; ++i) {
    device_.AwaitInFlight(1);
    device_.Finish();
  }
  EXPECT_EQ(b.Read().tag(), 4);
  for (int i = 0; i < 2; ++i) {
    device_.AwaitInFlight(1);
    device_.Finish();
  }
  for (const int64_t tag : {0, 1, 2, 3}) EXPECT_EQ(a.Read().tag(), tag);
}

TEST_F(QueuedStreamTest, ADrainAnswersWhatHasBeenTaken) {
  Start();
  Stream idle(channel());
  ASSERT_TRUE(idle.Send(7, {}));
  EXPECT_EQ(idle.Read().tag(), 7);
  Stream busy(channel());
  for (const int64_t tag : {1, 2}) {
    ASSERT_TRUE(busy.Send(tag, SmallRequest()));
  }
  device_.AwaitInFlight(1);
  Await("attention_queue_requests", 1);
  std::future<bool> drained = std::async(
      std::launch::async, [this] { return server().Drain(absl::Minutes(5)); });
  const grpc::Status ended = idle.End();
  EXPECT_EQ(ended.error_code(), Code::UNAVAILABLE);
  EXPECT_EQ(ReasonOf(ended), "DRAINING");
  std::set<int64_t> answered;  // messages may overtake each other
  for (int i = 0; i < 2; ++i) {
    device_.AwaitInFlight(1);
    device_.Finish();
    answered.insert(busy.Read().tag());
  }
  EXPECT_EQ(answered, (std::set<int64_t>{1, 2}));
  const grpc::Status status = busy.End();
  EXPECT_EQ(status.error_code(), Code::UNAVAILABLE);
  EXPECT_EQ(ReasonOf(status), "DRAINING");
  EXPECT_TRUE(drained.get());
  EXPECT_EQ(device_.records().size(), 2u);
}

TEST_F(QueuedStreamTest, ACancelledStreamTakesItsMessagesOutOfTheQueue) {
  Start();
  Stream stream(channel());
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(stream.Send(i, SmallRequest()));
  device_.AwaitInFlight(1);
  Await("attention_queue_requests", 3);
  stream.Cancel();
  EXPECT_EQ(stream.End().error_code(), Code::CANCELLED);
  Await("attention_queue_requests", 0);
  device_.Finish();
  Await("attention_requests_in_flight", 0);
  EXPECT_EQ(device_.records().size(), 1u);
  std::future<Outcome> call = CallInBackground(SmallRequest());
  device_.AwaitInFlight(1);
  device_.Finish();
  EXPECT_TRUE(call.get().status.ok());
}

TEST_F(QueuedStreamTest, ItsDeadlineIsThatOfEveryMessage) {
  Start();
  Stream other(channel());
  ASSERT_TRUE(other.Send(1, SmallRequest()));
  device_.AwaitInFlight(1);
  Stream stream(channel(), absl::Milliseconds(50));
  stream.Send(2, SmallRequest());
  // The message may be told before the stream ends.
  Response expired;
  if (stream.Read(expired)) {
    EXPECT_EQ(expired.error().code(), Code::DEADLINE_EXCEEDED);
  }
  EXPECT_EQ(stream.End().error_code(), Code::DEADLINE_EXCEEDED);
  Await("attention_queue_requests", 0);
  device_.Finish();
  EXPECT_EQ(other.Read().tag(), 1);
  other.CloseSending();
  EXPECT_TRUE(other.End().ok());
  DrainAndFinish();
  EXPECT_EQ(device_.records().size(), 1u);
}

// With the stream there is nobody left to tell.
TEST_F(QueuedStreamTest, StreamsThatEndAtAnyMomentLeaveTheServerServing) {
  Start();
  for (int i = 0; i < 40; ++i) {
    Stream stream(channel());
    for (int k = 0; k < i % 7; ++k) stream.Send(k, SmallRequest());
    if (i % 3 == 0) stream.CloseSending();
    if (i % 2 == 0) device_.Finish();
    stream.Cancel();
    Response response;
    while (stream.Read(response)) continue;
    stream.End();
  }
  DrainAndFinish();
  EXPECT_EQ(Metric("attention_queue_requests"), 0);
  EXPECT_EQ(Metric("attention_requests_in_flight"), 0);
}

class StreamLimitTest : public ServerTest {};

TEST_F(StreamLimitTest, AMessageTooLargeEndsTheStream) {
  AttentionServer::Options options;
  options.max_message_bytes = 64 << 10;
  StartServer(options);
  RequestSpec spec;
  spec.key_tokens = 2000;
  Stream stream(channel());
  stream.Send(1, RequestMaker(spec, random_).request());
  const grpc::Status status = stream.End();
  EXPECT_EQ(status.error_code(), Code::RESOURCE_EXHAUSTED)
      << status.error_message();
  EXPECT_TRUE(Call(SmallRequest()).status.ok());

  // An answer too large is the message's error.
  spec = {.query_tokens = 100, .key_tokens = 60};
  spec.return_weights = true;
  Stream other(channel());
  ASSERT_TRUE(other.Send(2, RequestMaker(spec, random_).request()));
  EXPECT_EQ(other.Read().error().reason(), "REQUEST_TOO_LARGE");
}

}  // namespace
}  // namespace attention::test
