// How a CUDA device runs batches on keys and values that stay, on a fake one.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/engine/cuda/cuda_device.h"
#include "server/engine/error_reason.h"
#include "tests/server/engine/engine_fixture.h"
#include "tests/server/engine/resident_test_support.h"
#include "tests/support/fake_kv_cache.h"

namespace attention::test {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;
using Call = FakeCudaRuntime::Call;
using Requests = std::vector<std::unique_ptr<ResidentRequest>>;

constexpr PagedConfig kConfig = {
    .heads = {.data_type = DataType::kFloat16,
              .head_dim_qk = 16,
              .head_dim_v = 16,
              .query_head_count = 4,
              .kv_head_count = 2,
              .mask = MaskKind::kCausalBottomRight},
    .page_tokens = 16};

class ResidentCudaTest : public testing::Test {
 protected:
  void SetUp() override { device().SetKvCache(&cache_); }

  Device& device() { return *engine_.device(); }
  FakeCudaRuntime& cuda() { return *engine_.fake_cuda(); }
  TestLayer MakeLayer() {
    TestLayer layer;
    layer.layer = cache_.MakeLayer();
    return layer;
  }

  Requests MakeRequests(const std::vector<TestLayer*>& layers,
                        int64_t tokens = 1, ResidentSpec spec = {}) {
    Requests requests;
    spec.config = kConfig;
    for (TestLayer* layer : layers) {
      spec.steps = {{.layer = layer, .append = tokens, .queries = tokens}};
      spec.seed = ++seed_;
      requests.push_back(std::make_unique<ResidentRequest>(spec));
    }
    return requests;
  }
  std::unique_ptr<Batch> NextBatch(Requests& requests) {
    return MakeResidentBatch(next_number_++, requests);
  }
  Requests Run(const std::vector<TestLayer*>& layers, int64_t tokens = 1,
               ResidentSpec spec = {}) {
    Requests requests = MakeRequests(layers, tokens, std::move(spec));
    RunAndWait(device(), NextBatch(requests));
    return requests;
  }
  static void ExpectRight(const Requests& requests) {
    for (const auto& request : requests) EXPECT_TRUE(request->AnsweredRight());
  }

  TestEngine engine_{EngineBackend::kFakeCuda};
  FakeKvCache cache_{engine_.device()->page_pool(), kConfig};
  uint64_t next_number_ = 0;
  uint64_t seed_ = 0;
};

TEST_F(ResidentCudaTest, OneLaunchAndOneCopyEachWayForManySessions) {
  std::vector<TestLayer> layers;
  std::vector<TestLayer*> pointers;
  for (int i = 0; i < 64; ++i) layers.push_back(MakeLayer());
  for (TestLayer& layer : layers) pointers.push_back(&layer);
  ExpectRight(Run(pointers, 20));
  ExpectRight(Run(pointers));
  EXPECT_EQ(cuda().calls(Call::kLaunchPaged), 2);
  EXPECT_EQ(cuda().calls(Call::kCopyToDevice), 2);
  EXPECT_EQ(cuda().calls(Call::kCopyToHost), 2);
  EXPECT_EQ(cuda().calls(Call::kClearDevice), 0);
  EXPECT_EQ(cuda().launches(), 0);
}

// A cache that keeps the thread of a batch from going on once all has begun.
class HeldCache final : public KvCache {
 public:
  HeldCache(KvCache& cache, uint64_t number) : cache_(cache), held_(number) {}

  void BeginBatch(uint64_t number) override { cache_.BeginBatch(number); }
  absl::Status Begin(uint64_t number, const KvStep& step,
                     KvView& view) override {
    return cache_.Begin(number, step, view);
  }
  void AllBegun(uint64_t number) override {
    cache_.AllBegun(number);
    if (number == held_) go_on_.WaitForNotification();
  }
  void EndBatch(uint64_t number, bool ok) override {
    cache_.EndBatch(number, ok);
  }
  void GoOn() { go_on_.Notify(); }

 private:
  KvCache& cache_;
  const uint64_t held_;
  absl::Notification go_on_;
};

// The stream of the first batch is not waited for before the second is over.
TEST_F(ResidentCudaTest, ComputationsFollowEachOtherOverStreams) {
  HeldCache held(cache_, 0);
  device().SetKvCache(&held);
  TestLayer layer = MakeLayer();
  Requests first = MakeRequests({&layer}, 40);
  Requests second = MakeRequests({&layer});
  auto first_batch = NextBatch(first);
  auto second_batch = NextBatch(second);
  absl::Notification first_free;
  device().Run(std::move(first_batch), [&] { first_free.Notify(); });
  RunAndWait(device(), std::move(second_batch));
  EXPECT_FALSE(first[0]->done());
  ExpectRight(second);
  EXPECT_THAT(cache_.ended(), ElementsAre(Pair(1, true)));
  held.GoOn();
  first_free.WaitForNotification();
  ExpectRight(first);
  EXPECT_EQ(cuda().calls(Call::kWaitEvent), 1);
}

struct FailedCall {
  Call call;
  int n;         // the n-th of the batch
  bool is_lost;  // steps have begun by then
};
class FailedCallTest : public ResidentCudaTest,
                       public testing::WithParamInterface<FailedCall> {};
INSTANTIATE_TEST_SUITE_P(
    Calls, FailedCallTest,
    testing::Values(FailedCall{Call::kRecordEvent, 1, false},
                    FailedCall{Call::kCopyToDevice, 1, false},
                    FailedCall{Call::kRecordEvent, 2, false},
                    FailedCall{Call::kLaunchPaged, 1, true},
                    FailedCall{Call::kRecordEvent, 3, true},
                    FailedCall{Call::kCopyToHost, 1, true},
                    FailedCall{Call::kRecordEvent, 4, true},
                    FailedCall{Call::kSynchronize, 1, true},
                    FailedCall{Call::kElapsedTime, 1, true}));

TEST_P(FailedCallTest, LosesWhatItsBatchAppendedTo) {
  const auto [call, n, is_lost] = GetParam();
  TestLayer hit = MakeLayer(), other = MakeLayer();
  ExpectRight(Run({&hit, &other}, 20));
  const TestLayer before = hit;
  cuda().FailCall(call, n, /*sticky=*/false);
  for (const auto& request : Run({&hit})) {
    EXPECT_EQ(request->Wait().status().code(), absl::StatusCode::kInternal);
    EXPECT_TRUE(request->payload_released());
  }
  EXPECT_EQ(cache_.IsLost(hit.layer), is_lost);
  EXPECT_FALSE(cache_.IsLost(other.layer));
  EXPECT_THAT(cache_.ended(), ElementsAre(Pair(0, true), Pair(1, !is_lost)));
  hit = before;
  Requests next = MakeRequests({&other, &hit});
  RunAndWait(device(), NextBatch(next));
  EXPECT_TRUE(next[0]->AnsweredRight());
  if (is_lost) {
    ASSERT_TRUE(next[1]->Wait().ok());
    EXPECT_EQ(next[1]->Wait()->sequence_statuses[0].code(),
              absl::StatusCode::kAborted);
  } else {
    EXPECT_TRUE(next[1]->AnsweredRight());
  }
  EXPECT_TRUE(device().health().ok());
  EXPECT_EQ(engine_.Metric("attention_batches_in_flight"), 0);
}

TEST_P(FailedCallTest, BatchesOfADeadDeviceBeginAndEnd) {
  TestLayer layer = MakeLayer();
  ExpectRight(Run({&layer}, 20));
  cuda().FailCall(GetParam().call, GetParam().n, /*sticky=*/true);
  for (int i = 0; i < 4; ++i) {
    for (const auto& request : Run({&layer})) {
      EXPECT_EQ(request->Wait().status().code(),
                absl::StatusCode::kUnavailable);
    }
  }
  EXPECT_EQ(cache_.ended().size(), 5u);
  EXPECT_EQ(cache_.IsLost(layer.layer), GetParam().is_lost);
}

// A step that fails has its results cleared.
TEST_F(ResidentCudaTest, AFailedClearLosesTheOthers) {
  TestLayer layer = MakeLayer();
  cuda().FailCall(Call::kClearDevice, 1, /*sticky=*/false);
  TestLayer gap = MakeLayer();
  ResidentSpec spec;
  spec.config = kConfig;
  spec.steps = {{.layer = &layer, .append = 1, .queries = 1},
                {.layer = &gap,
                 .append = 1,
                 .queries = 1,
                 .expected_position = 7,
                 .code = absl::StatusCode::kOutOfRange}};
  Requests requests;
  requests.push_back(std::make_unique<ResidentRequest>(spec));
  RunAndWait(device(), NextBatch(requests));
  EXPECT_EQ(requests[0]->Wait().status().code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(cache_.IsLost(layer.layer));
  EXPECT_FALSE(cache_.IsLost(gap.layer));
}

// Memory for a part of a batch at a time, and a failure in the first part.
TEST(ResidentCudaSplitTest, NothingBeginsAfterAPartHasFailed) {
  PagedConfig config = kConfig;
  config.heads.head_dim_qk = config.heads.head_dim_v = 256;
  TestEngine engine(EngineBackend::kFakeCuda,
                    {.host_bytes = size_t{3500} << 10});
  FakeKvCache cache(engine.device()->page_pool(), config);
  engine.device()->SetKvCache(&cache);
  TestLayer hit, other;
  hit.layer = cache.MakeLayer();
  other.layer = cache.MakeLayer();
  Requests requests;
  // 800 KB of keys and values each.
  for (TestLayer* layer : {&hit, &hit, &other}) {
    requests.push_back(std::make_unique<ResidentRequest>(
        ResidentSpec{.config = config,
                     .steps = {{.layer = layer, .append = 400, .queries = 1}},
                     .fragment_bytes = 60'000}));
  }
  engine.fake_cuda()->FailCall(Call::kLaunchPaged, 1, /*sticky=*/false);
  RunAndWait(*engine.device(), MakeResidentBatch(0, requests));
  for (const auto& request : requests) {
    EXPECT_EQ(request->Wait().status().code(), absl::StatusCode::kInternal);
  }
  EXPECT_TRUE(cache.IsLost(hit.layer));
  EXPECT_EQ(cache.Length(hit.layer), 400);
  EXPECT_FALSE(cache.IsLost(other.layer));
  EXPECT_EQ(cache.Length(other.layer), 0);
  EXPECT_THAT(cache.ended(), ElementsAre(Pair(0, false)));
}

// Four sessions of 100 pages, which were taken for one, and a launch that needs
// 10 MB of scratch memory for each.
class OutgrownScratchTest : public ResidentCudaTest {
 protected:
  void SetUp() override {
    ResidentCudaTest::SetUp();
    for (int i = 0; i < 4; ++i) layers_.push_back(MakeLayer());
    ResidentSpec prefixes = {.config = kConfig};
    for (TestLayer& layer : layers_) {
      prefixes.steps.push_back({.layer = &layer, .append = 1599});
    }
    Requests requests;
    requests.push_back(std::make_unique<ResidentRequest>(prefixes));
    RunAndWait(device(), NextBatch(requests));
    ExpectRight(requests);
    launches_before_ = cuda().calls(Call::kLaunchPaged);
    cuda().SetScratchPerPage(100 << 10);
    used_memory_ = engine_.device_pool()->usage().in_use_bytes;
    engine_.device_pool()->Trim();
  }

  std::vector<TestLayer*> All() {
    std::vector<TestLayer*> all;
    for (TestLayer& layer : layers_) all.push_back(&layer);
    return all;
  }
  Requests RunUnderestimated() {
    return Run(All(), 1, {.estimated_length = 1});
  }
  int launches() { return cuda().calls(Call::kLaunchPaged) - launches_before_; }

  std::vector<TestLayer> layers_;
  int launches_before_ = 0;
  size_t used_memory_ = 0;
};

TEST_F(OutgrownScratchTest, GrowsIfThereIsMemory) {
  ExpectRight(RunUnderestimated());
  EXPECT_EQ(launches(), 1);
}

TEST_F(OutgrownScratchTest, CutsTheLaunchIfThereIsNot) {
  cuda().LimitDeviceMemory(used_memory_ + (16 << 20));
  ExpectRight(RunUnderestimated());
  EXPECT_EQ(launches(), 4);
  ExpectRight(Run({&layers_[2]}, 1, {.estimated_length = 1}));
  EXPECT_EQ(launches(), 5);
}

// Not with estimates that deserve the name.
TEST_F(OutgrownScratchTest, SessionsAreLostIfNotEvenOneFits) {
  cuda().LimitDeviceMemory(used_memory_ + (8 << 20));
  for (const auto& request : RunUnderestimated()) {
    EXPECT_EQ(request->Wait().status().code(),
              absl::StatusCode::kResourceExhausted);
  }
  for (const TestLayer& layer : layers_) {
    EXPECT_TRUE(cache_.IsLost(layer.layer));
  }
}

TEST_F(OutgrownScratchTest, WithRightEstimatesTheBatchIsSplitBeforeItBegins) {
  cuda().LimitDeviceMemory(used_memory_ + (24 << 20));
  Requests requests = Run(All());
  ExpectRight(requests);
  EXPECT_EQ(launches(), 4);
  EXPECT_EQ(requests[0]->Wait()->batch_request_count, 1);
}

}  // namespace
}  // namespace attention::test
