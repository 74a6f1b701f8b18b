// Streams that end before they are answered, and those that a drain waits for.
#include <gtest/gtest.h>

#include <future>

#include "server/rpc/stream_call.h"
#include "server/transport/write_watch.h"
#include "tests/server/lifecycle/upload_fixture.h"

namespace attention::test {
namespace {

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

  // A chunk may have been on its way all the time.
  clock_.Advance(absl::Seconds(30) + TransferTime(kMaxChunkBytes) -
                 absl::Nanoseconds(1));
  server().ReleaseExpired();
  EXPECT_EQ(Metric("attention_requests_in_flight"), 3);
  clock_.Advance(absl::Nanoseconds(1));
  server().ReleaseExpired();
  for (StreamCaller* caller : {&silent, &started}) {
    ExpectRefused(caller->Finish(), grpc::StatusCode::ABORTED, "STREAM_IDLE",
                  "nothing has come");
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
    context.set_deadline(
        absl::ToChronoTime(absl::Now() + absl::Milliseconds(50)));
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
  ASSERT_TRUE(caller.Start(StartOf(SmallRequest(), kUploadId)));
  caller.ReadState();
  EXPECT_FALSE(server().Drain(absl::Milliseconds(100)));
  EXPECT_FALSE(caller.Finish().status.ok());
  StopServer();
  EXPECT_EQ(device_.used_memory_bytes(), 0u);
}

}  // namespace
}  // namespace attention::test
