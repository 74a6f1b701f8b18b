// Callers who do not take what they are sent.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/engine/device_factory.h"
#include "server/transport/write_watch.h"
#include "tests/server/lifecycle/server_fixture.h"
#include "tests/server/metrics/metric_reader.h"
#include "tests/support/fake_clock.h"

namespace attention::test {
namespace {

// A call that has sent a message and takes an answer when the test says so:
// until then no more of it arrives than a connection buffers.
class PatientCall {
 public:
  PatientCall(const std::shared_ptr<grpc::Channel>& channel,
              const std::string& method, const std::string& message)
      : stub_(channel) {
    call_ = stub_.PrepareCall(&context_, method, &queue_);
    call_->StartCall(nullptr);
    EXPECT_TRUE(Wait());
    const grpc::Slice slice(message);
    call_->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    EXPECT_TRUE(Wait());
    call_->WritesDone(nullptr);
    EXPECT_TRUE(Wait());
  }
  ~PatientCall() {
    context_.TryCancel();
    queue_.Shutdown();
  }

  // Its size in bytes; -1 if there is none.
  int64_t TakeAnswer() {
    grpc::ByteBuffer answer;
    call_->Read(&answer, nullptr);
    return Wait() ? static_cast<int64_t>(answer.Length()) : -1;
  }
  grpc::Status End() {
    grpc::Status status;
    call_->Finish(&status, nullptr);
    EXPECT_TRUE(Wait());
    return status;
  }

 private:
  bool Wait() {
    void* tag;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

constexpr char kUnary[] = "ComputeAttention";
constexpr char kStream[] = "StreamComputeAttention";

// On the CPU backend, with a clock that the test moves.
class UntakenAnswerTest : public ServerTest,
                          public testing::WithParamInterface<const char*> {
 protected:
  // Before the devices.
  ~UntakenAnswerTest() override { StopServer(); }

  void SetUp() override {
    auto devices = CreateDevices({.backend = Backend::kCpu}, &device_metrics_);
    ASSERT_TRUE(devices.ok()) << devices.status();
    devices_ = *std::move(devices);
    AttentionServer::Options options;
    options.drain_delay = absl::ZeroDuration();
    StartServerOn(options, devices_->devices(), &clock_);
  }

  // A call whose answer is computed, and too large to be on its way as a whole.
  std::unique_ptr<PatientCall> AnsweredCall() {
    constexpr int64_t kTokenBytes = 4 * 256 * sizeof(float);
    RequestSpec spec;
    spec.query_tokens = kAnswerBytes / kTokenBytes;
    spec.key_tokens = 1;
    spec.head_dim_qk = spec.head_dim_v = 256;
    const v1::ComputeAttentionRequest request =
        RequestMaker(spec, random_).request();
    std::string message = request.SerializeAsString();
    if (GetParam() == std::string(kStream)) {
      v1::StreamComputeAttentionRequest streamed;
      *streamed.mutable_request() = request;
      message = streamed.SerializeAsString();
    }
    auto call = std::make_unique<PatientCall>(
        Connect(unix_address()),
        std::string("/attention.v1.AttentionService/") + GetParam(), message);
    while (MetricReader(server().metrics())
               .Sum("attention_requests_total", {{"code", "OK"}}) < 1) {
      std::this_thread::yield();
    }
    EXPECT_GE(UsedMemory(), kAnswerBytes);
    return call;
  }
  double UsedMemory() {
    return MetricReader(device_metrics_)
        .Sum("attention_memory_bytes", {{"state", "in_use"}});
  }

  static constexpr int64_t kAnswerBytes = int64_t{16} << 20;
  FakeClock clock_;
  Metrics device_metrics_{{}};
  std::unique_ptr<DeviceSet> devices_;
};

TEST_P(UntakenAnswerTest, ASlowCallerGetsItAll) {
  const auto call = AnsweredCall();
  clock_.Advance(absl::Seconds(30) + TransferTime(kAnswerBytes) -
                 absl::Nanoseconds(1));
  server().ReleaseExpired();
  EXPECT_GE(call->TakeAnswer(), kAnswerBytes);
  EXPECT_EQ(call->TakeAnswer(), -1);
  EXPECT_TRUE(call->End().ok());
}

TEST_P(UntakenAnswerTest, WhoTakesNothingIsCutOff) {
  const auto call = AnsweredCall();
  // The write may begin a moment after the request has been counted.
  while (UsedMemory() > 0) {
    clock_.Advance(absl::Seconds(31) + TransferTime(kAnswerBytes));
    server().ReleaseExpired();
    std::this_thread::yield();
  }
  EXPECT_EQ(call->TakeAnswer(), -1);
  EXPECT_EQ(call->End().error_code(), grpc::StatusCode::CANCELLED);
}

// The server has done its part.
TEST_P(UntakenAnswerTest, ADrainIsNoFailure) {
  const auto call = AnsweredCall();
  EXPECT_TRUE(server().Drain(absl::Milliseconds(300)));
  EXPECT_EQ(call->TakeAnswer(), -1);
  EXPECT_FALSE(call->End().ok());
}

INSTANTIATE_TEST_SUITE_P(Methods, UntakenAnswerTest,
                         testing::Values(kUnary, kStream));

}  // namespace
}  // namespace attention::test
