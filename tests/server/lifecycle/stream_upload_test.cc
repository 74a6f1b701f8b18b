// Uploads that outlive their streams: leases, takeovers, breaks.
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "tests/server/lifecycle/upload_fixture.h"

namespace attention::test {
namespace {

TEST_F(UploadTest, WaitsForTheTimeOfItsLease) {
  Start();
  const v1::ComputeAttentionRequest request = SmallRequest();
  v1::StreamAttentionStart start = StartOf(request, kUploadId);
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
  EXPECT_EQ(
      Metric("attention_upload_bytes"),
      request.query().size() + request.key().size() + request.value().size());
  clock_.Advance(absl::Seconds(10));
  server().ReleaseExpired();
  AwaitNoStreams();
  EXPECT_EQ(Metric("attention_uploads"), 0);
  EXPECT_EQ(Metric("attention_upload_bytes"), 0);
  EXPECT_EQ(Metric("attention_upload_events_total", {{"event", "expired"}}), 1);

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
    ASSERT_TRUE(caller.Start(StartOf(request, kUploadId)));
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
  ASSERT_TRUE(old.Start(StartOf(request, kUploadId)));
  old.ReadState();
  ASSERT_TRUE(old.Send(chunks[0]));
  while (Metric("attention_bytes_total", {{"direction", "received"}}) <
         chunks[0].ByteSizeLong() +
             StartOf(request, kUploadId).ByteSizeLong()) {
    std::this_thread::yield();
  }

  StreamCaller next(channel());
  ASSERT_TRUE(next.Start(StartOf(request, kUploadId)));
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
  ASSERT_TRUE(caller.Start(StartOf(request, kUploadId)));
  caller.ReadState();
  v1::StreamAttentionStart other = StartOf(request, kUploadId);
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
    ASSERT_TRUE(caller.Start(StartOf(request, kUploadId)));
    for (const auto& chunk : ChunksOf(request, 64)) {
      ASSERT_TRUE(caller.Send(chunk));
    }
    device_.AwaitInFlight(1);
  }
  AwaitMetric("attention_requests_in_flight", 0);
  StreamCaller caller(channel());
  ASSERT_TRUE(caller.Start(StartOf(request, kUploadId)));
  EXPECT_EQ(TotalBytes(caller.ReadState()),
            static_cast<int64_t>(request.query().size() + request.key().size() +
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
      CallStream(channel(), StartOf(request, kUploadId), ChunksOf(request, 64));
  ExpectRefused(refused, grpc::StatusCode::RESOURCE_EXHAUSTED, "QUEUE_FULL",
                "queue is full");
  EXPECT_EQ(refused.trailers.count("grpc-retry-pushback-ms"), 1u);

  device_.Finish();
  device_.AwaitInFlight(1);
  device_.Finish();
  EXPECT_TRUE(running.get().status.ok());
  EXPECT_TRUE(queued.get().status.ok());
  std::future<Outcome> again = std::async(std::launch::async, [&] {
    return CallStream(channel(), StartOf(request, kUploadId), {});
  });
  device_.AwaitInFlight(1);
  device_.Finish();
  EXPECT_TRUE(again.get().status.ok());
}

}  // namespace
}  // namespace attention::test
