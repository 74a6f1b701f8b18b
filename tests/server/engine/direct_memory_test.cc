// Tensors that a GPU reaches without a copy by a processor, on a fake one.
#include "server/engine/direct_memory.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/engine/error_reason.h"
#include "tests/server/engine/direct_memory_fixture.h"

namespace attention::test {
namespace {

using ::testing::HasSubstr;
using Call = FakeCudaRuntime::Call;
using Kind = DirectMemory::Kind;

constexpr HeadConfig kConfig = {.head_dim_qk = 8,
                                .head_dim_v = 8,
                                .query_head_count = 1,
                                .kv_head_count = 1};
// Each tensor of it has 320 KB: worth a copy of its own.
const WorkSpec kLarge = {
    .config = kConfig,
    .lengths = std::vector<std::pair<int64_t, int64_t>>(100, {100, 100})};
// Far too little for staging, enough for a launch.
constexpr size_t kNoStagingBytes = 128 << 10;
const WorkSpec kSmall = {.config = kConfig, .lengths = {{50, 60}}};

TEST_F(DirectMemoryTest, PinnedTensorsAreCopiedByTheGpuAlone) {
  engine_ = std::make_unique<TestEngine>(
      EngineBackend::kFakeCuda, EngineBudgets{.host_bytes = kNoStagingBytes});
  TestRequest& request = Add(kLarge);
  PlaceInputs(request, Kind::kPinned);
  PlaceResults(request, Kind::kPinned);
  RunAll();
  ExpectAllRight();
  EXPECT_EQ(reads(), 0);
  EXPECT_EQ(cuda().calls(Call::kCopyToDevice), 3);
  EXPECT_EQ(cuda().calls(Call::kCopyToHost), 1);
  EXPECT_EQ(request.Wait()->output.size(), 0u);
}

TEST_F(DirectMemoryTest, TensorsOnTheGpuAreUsedInPlace) {
  engine_ = std::make_unique<TestEngine>(
      EngineBackend::kFakeCuda,
      EngineBudgets{.host_bytes = kNoStagingBytes, .device_bytes = 4096});
  for (const WorkSpec& spec : {kSmall, kLarge}) {
    TestRequest& request = Add(spec);
    PlaceInputs(request, Kind::kDevice);
    PlaceResults(request, Kind::kDevice);
  }
  RunAll();
  ExpectAllRight();
  EXPECT_EQ(reads(), 0);
  EXPECT_EQ(cuda().calls(Call::kCopyToDevice), 0);
  EXPECT_EQ(cuda().calls(Call::kCopyToHost), 0);
  EXPECT_EQ(cuda().launches(), 1);
  // There is one phase, which takes no events to measure.
  EXPECT_EQ(cuda().calls(Call::kRecordEvent), 0);
  EXPECT_EQ(cuda().calls(Call::kElapsedTime), 0);
  EXPECT_GT(engine_->Metric("attention_compute_seconds_total"), 0);
  EXPECT_EQ(engine_->Metric("attention_copied_bytes_total"), 0);
}

TEST_F(DirectMemoryTest, SmallPinnedTensorsTravelTogether) {
  for (int i = 0; i < 5; ++i) {
    TestRequest& request = Add(kSmall);
    PlaceInputs(request, Kind::kPinned);
    PlaceResults(request, Kind::kPinned);
  }
  RunAll();
  ExpectAllRight();
  EXPECT_EQ(reads(), 15);
  EXPECT_EQ(cuda().calls(Call::kCopyToDevice), 1);
  EXPECT_EQ(cuda().calls(Call::kCopyToHost), 1);
  EXPECT_GT(requests_[0]->Wait()->output.size(), 0u);
}

// Every way that a tensor can take, in every combination, in one batch.
TEST_F(DirectMemoryTest, MixedInOneBatch) {
  constexpr Kind kKinds[] = {Kind::kNone, Kind::kPinned, Kind::kDevice};
  uint64_t seed = 0;
  for (const WorkSpec& base : {kSmall, kLarge}) {
    for (Kind query : kKinds) {
      for (Kind key : kKinds) {
        for (Kind result : kKinds) {
          WorkSpec spec = base;
          spec.seed = ++seed;
          spec.lengths[0] = {9, key == query ? 11 : 70};
          spec.log_sum_exp = seed % 2 == 0;
          TestRequest& request = Add(spec);
          AttentionWork& work = request.work();
          if (query != Kind::kNone) Place(work.query, query);
          if (key != Kind::kNone) Place(work.key, key);
          if (result != Kind::kNone) PlaceResults(request, result);
        }
      }
    }
  }
  RunAll();
  EXPECT_EQ(cuda().launches(), 1);
  ExpectAllRight();
}

TEST_F(DirectMemoryTest, PaddingIsClearedAtTargetsToo) {
  for (Kind kind : {Kind::kPinned, Kind::kDevice}) {
    for (int64_t rows : {70, 12000}) {
      TestRequest& request = Add({.config = kConfig,
                                  .lengths = {{33, 40}, {0, 40}, {70, 2}},
                                  .padded_query_length = rows,
                                  .log_sum_exp = true});
      PlaceInputs(request, kind);
      PlaceResults(request, kind);
    }
  }
  RunAll();
  ExpectAllRight();
}

TEST_F(DirectMemoryTest, WeightsAreWrittenInPlace) {
  HeadConfig config = kConfig;
  config.algorithm = Algorithm::kThreeStep;
  for (Kind kind : {Kind::kPinned, Kind::kDevice}) {
    TestRequest& request = Add(
        {.config = config, .lengths = {{300, 301}, {7, 9}}, .weights = true});
    PlaceInputs(request, kind);
    PlaceResults(request, kind);
  }
  RunAll();
  ExpectAllRight();
  EXPECT_EQ(requests_[0]->Wait()->weights.size(), 0u);
}

TEST_F(DirectMemoryTest, ASourceThatIsGoneConcernsItsWorkAlone) {
  const absl::Status gone = absl::FailedPreconditionError("it has shrunk");
  for (Kind kind : {Kind::kPinned, Kind::kDevice}) {
    requests_.clear();
    Add(kLarge);
    TestRequest& failed = Add(kLarge);
    Place(failed.work().key, kind)->check = gone;
    Add(kSmall);
    RunAll();
    EXPECT_EQ(failed.Wait().status().code(), gone.code());
    EXPECT_THAT(std::string(failed.Wait().status().message()),
                HasSubstr("it has shrunk"));
    EXPECT_EQ(sources_.back()->checks(), 1);
    EXPECT_TRUE(requests_[0]->AnsweredRight());
    EXPECT_TRUE(requests_[2]->AnsweredRight());
  }
}

// So that a caller with its answer may free the memory.
TEST_F(DirectMemoryTest, SourcesAreLetGoBeforeTheAnswer) {
  for (bool fails : {false, true}) {
    requests_.clear();
    TestRequest& request = Add(kSmall);
    const std::weak_ptr<DirectSource> source =
        Place(request.work().key, Kind::kDevice);
    sources_.clear();
    if (fails) cuda().FailCall(Call::kLaunch, 1, /*sticky=*/false);
    bool let_go = false;
    request.work().done = [&, done = std::move(request.work().done)](
                              absl::StatusOr<WorkResult> result) mutable {
      let_go = source.expired();
      done(std::move(result));
    };
    RunAll();
    EXPECT_EQ(request.Wait().ok(), !fails);
    EXPECT_TRUE(let_go);
  }
}

TEST_F(DirectMemoryTest, MemoryOfAnotherGpuIsNotTouched) {
  Add(kSmall);
  TestRequest& wrong = Add(kSmall);
  Place(wrong.work().value, Kind::kDevice)->device_offset = 1;
  Add(kSmall);
  RunAll();
  EXPECT_EQ(wrong.Wait().status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ReasonOf(wrong.Wait().status()), error_reason::kInternal);
  EXPECT_TRUE(requests_[0]->AnsweredRight());
  EXPECT_TRUE(requests_[2]->AnsweredRight());
  EXPECT_TRUE(engine_->device()->health().ok());
}

TEST_F(DirectMemoryTest, FailedCopiesFailTheirBatch) {
  for (Call call : {Call::kCopyToDevice, Call::kCopyToHost}) {
    requests_.clear();
    TestRequest& request = Add(kLarge);
    PlaceInputs(request, Kind::kPinned);
    PlaceResults(request, Kind::kPinned);
    cuda().FailCall(call, 1, /*sticky=*/false);
    RunAll();
    EXPECT_EQ(request.Wait().status().code(), absl::StatusCode::kInternal);
  }
}

TEST_F(DirectMemoryTest, CountsTheBytesThatMove) {
  TestRequest& request = Add(kLarge);
  Place(request.work().key, Kind::kDevice);
  Place(request.work().value, Kind::kPinned);
  EXPECT_EQ(request.work().moved_bytes(), 3 * 320000u);
  PlaceResults(request, Kind::kDevice);
  EXPECT_EQ(request.work().moved_bytes(), 2 * 320000u);
  RunAll();
  ExpectAllRight();
  EXPECT_EQ(engine_->Metric("attention_copied_bytes_total"), 2 * 320000);
}

// The CPU has its own memory only, and hands out blocks.
TEST(DirectMemoryOnCpuTest, TargetsAreLeftToTheCaller) {
  TestEngine engine(EngineBackend::kCpu);
  std::vector<std::unique_ptr<TestRequest>> requests;
  requests.push_back(std::make_unique<TestRequest>(kSmall));
  float nowhere = 0;
  requests[0]->work().output_target = {.kind = Kind::kPinned,
                                       .address = &nowhere};
  RunAndWait(*engine.device(), MakeBatch(requests));
  EXPECT_TRUE(requests[0]->AnsweredRight());
  EXPECT_GT(requests[0]->Wait()->output.size(), 0u);
  EXPECT_EQ(nowhere, 0);
}

}  // namespace
}  // namespace attention::test
