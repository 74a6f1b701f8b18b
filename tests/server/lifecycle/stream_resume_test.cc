// Streams that break anywhere, and are gone on with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/lifecycle/upload_fixture.h"

namespace attention::test {
namespace {

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

// Several callers go on with the same uploads at once, and some give up:
// whoever gets an answer gets the right one.
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
