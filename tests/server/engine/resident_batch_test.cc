// What every device promises of batches on keys and values that stay.
#include <algorithm>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/engine/error_reason.h"
#include "tests/server/engine/engine_fixture.h"
#include "tests/server/engine/resident_test_support.h"
#include "tests/support/fake_kv_cache.h"

namespace attention::test {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;
using Requests = std::vector<std::unique_ptr<ResidentRequest>>;

constexpr PagedConfig kConfig = {
    .heads = {.data_type = DataType::kBFloat16,
              .head_dim_qk = 40,
              .head_dim_v = 24,
              .query_head_count = 6,
              .kv_head_count = 2,
              .mask = MaskKind::kCausalBottomRight},
    .page_tokens = 16};

class ResidentBatchTest : public EngineTest {
 protected:
  void SetUp() override { StartWith(kConfig); }

  void StartWith(const PagedConfig& config, EngineBudgets budgets = {}) {
    layers_.clear();
    cache_.reset();
    Start(budgets);
    if (IsSkipped() || HasFatalFailure()) return;
    config_ = config;
    // On the CPU pages would count as works' memory, which tests make scarce.
    const bool has_own_memory = engine().device_pool() != nullptr;
    cache_ = std::make_unique<FakeKvCache>(
        has_own_memory ? device().page_pool() : &host_pages_, config);
    device().SetKvCache(cache_.get());
    next_number_ = 0;
  }

  TestLayer& MakeLayer() {
    layers_.push_back(std::make_unique<TestLayer>());
    layers_.back()->layer = cache_->MakeLayer();
    return *layers_.back();
  }
  TestLayer& Fork(const TestLayer& layer) {
    layers_.push_back(
        std::make_unique<TestLayer>(layer.ForkedTo(cache_->Fork(layer.layer))));
    return *layers_.back();
  }

  std::unique_ptr<ResidentRequest> Request(std::vector<StepSpec> steps,
                                           ResidentSpec spec = {}) {
    spec.config = config_;
    spec.steps = std::move(steps);
    spec.seed = ++seed_;
    return std::make_unique<ResidentRequest>(std::move(spec));
  }
  Requests OneRequest(std::vector<StepSpec> steps, ResidentSpec spec = {}) {
    Requests requests;
    requests.push_back(Request(std::move(steps), std::move(spec)));
    return requests;
  }

  std::unique_ptr<Batch> NextBatch(Requests& requests) {
    return MakeResidentBatch(next_number_++, requests);
  }
  void ExpectRight(Requests requests) {
    RunAndWait(device(), NextBatch(requests));
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_TRUE(requests[i]->AnsweredRight()) << "request " << i;
      EXPECT_TRUE(requests[i]->payload_released());
    }
  }

  MemoryPool host_pages_{{.name = "pages", .budget_bytes = size_t{1} << 30},
                         MakeHostAllocator()};
  PagedConfig config_;
  uint64_t next_number_ = 0;
  uint64_t seed_ = 0;
  std::unique_ptr<FakeKvCache> cache_;
  std::vector<std::unique_ptr<TestLayer>> layers_;
};
INSTANTIATE_FOR_ENGINES(ResidentBatchTest);

TEST_P(ResidentBatchTest, DecodesAfterAPrefix) {
  TestLayer& layer = MakeLayer();
  ExpectRight(OneRequest({{.layer = &layer, .append = 50, .queries = 50}},
                         {.log_sum_exp = true}));
  for (int i = 0; i < 20; ++i) {
    ExpectRight(OneRequest({{.layer = &layer, .append = 1, .queries = 1}}));
  }
  // Appends alone, and looks alone.
  ExpectRight(OneRequest({{.layer = &layer, .append = 30}}));
  ExpectRight(OneRequest({{.layer = &layer, .queries = 3}}));
  EXPECT_EQ(cache_->Length(layer.layer), 100);
}

TEST_P(ResidentBatchTest, ManySessionsShareABatch) {
  for (DataType type :
       {DataType::kFloat32, DataType::kFloat16, DataType::kBFloat16}) {
    for (int32_t page_tokens : {1, 7, 64}) {
      PagedConfig config = kConfig;
      config.heads.data_type = type;
      config.page_tokens = page_tokens;
      config.split_policy = page_tokens == 7 ? SplitPolicy::kFixed
                                             : SplitPolicy::kBalanced;
      StartWith(config);
      if (IsSkipped()) return;
      Requests prefixes;
      for (int i = 0; i < 12; ++i) {
        prefixes.push_back(
            Request({{.layer = &MakeLayer(), .append = 1 + 13 * i}},
                    {.fragment_bytes = 700}));
      }
      ExpectRight(std::move(prefixes));
      for (int round = 0; round < 3; ++round) {
        Requests requests;
        for (size_t i = 0; i < layers_.size(); i += 3) {
          requests.push_back(Request(
              {{.layer = layers_[i].get(), .append = 1, .queries = 1},
               {.layer = layers_[i + 1].get(), .append = 4, .queries = 4},
               {.layer = layers_[i + 2].get(), .append = 2, .queries = 1}},
              {.log_sum_exp = i % 2 == 0, .fragment_bytes = 333}));
        }
        ExpectRight(std::move(requests));
      }
    }
  }
}

// Steps of one session, in one work and in several of a batch.
TEST_P(ResidentBatchTest, StepsOfASessionKeepTheirOrder) {
  TestLayer& layer = MakeLayer();
  Requests requests;
  for (int64_t i = 0; i < 20; ++i) {
    requests.push_back(Request({{.layer = &layer,
                                 .append = 3,
                                 .queries = 3,
                                 .expected_position = 5 * i},
                                {.layer = &layer, .append = 2, .queries = 1}}));
  }
  ExpectRight(std::move(requests));
}

TEST_P(ResidentBatchTest, RangesAndForks) {
  PagedConfig config = kConfig;
  config.heads.mask = MaskKind::kNone;
  StartWith(config);
  if (IsSkipped()) return;
  TestLayer& layer = MakeLayer();
  ExpectRight(OneRequest({{.layer = &layer, .append = 40}}));
  TestLayer& fork = Fork(layer);
  ExpectRight(
      OneRequest({{.layer = &layer,
                   .append = 5,
                   .queries = 2,
                   .key_range = KeyRange{7, 44}},
                  {.layer = &fork, .append = 20, .queries = 4},
                  {.layer = &layer, .queries = 1, .key_range = KeyRange{0, 1}},
                  {.layer = &fork, .append = 1, .queries = 1}},
                 {.log_sum_exp = true}));
  ExpectRight(OneRequest(
      {{.layer = &layer, .queries = 1}, {.layer = &fork, .queries = 1}}));
}

TEST_P(ResidentBatchTest, AStepFailsAlone) {
  TestLayer& layer = MakeLayer();
  TestLayer& other = MakeLayer();
  ExpectRight(OneRequest({{.layer = &layer, .append = 10}}));
  Requests requests;
  requests.push_back(Request({{.layer = &layer, .append = 1, .queries = 1},
                              {.layer = &layer,
                               .append = 2,
                               .queries = 2,
                               .expected_position = 9,
                               .code = absl::StatusCode::kAlreadyExists},
                              {.layer = &other, .append = 3, .queries = 3},
                              {.layer = &other,
                               .append = 1,
                               .queries = 1,
                               .expected_position = 4,
                               .code = absl::StatusCode::kOutOfRange}},
                             {.log_sum_exp = true}));
  requests.push_back(Request({{.layer = &other,
                               .queries = 1,
                               .key_range = KeyRange{0, 100},
                               .code = absl::StatusCode::kOutOfRange}}));
  requests.push_back(Request({{.layer = &other, .append = 1, .queries = 1}}));
  ExpectRight(std::move(requests));
  EXPECT_EQ(cache_->Length(layer.layer), 11);
  EXPECT_EQ(cache_->Length(other.layer), 4);
  EXPECT_THAT(cache_->ended(), ElementsAre(Pair(0, true), Pair(1, true)));
}

TEST_P(ResidentBatchTest, WhatCannotBeReadDoesNotBegin) {
  TestLayer& layer = MakeLayer();
  Requests requests;
  requests.push_back(Request({{.layer = &layer, .append = 4, .queries = 4}}));
  requests.push_back(Request({{.layer = &layer, .append = 2, .queries = 2}},
                             {.unreadable = true}));
  requests.push_back(Request(
      {{.layer = &layer, .append = 1, .queries = 1, .expected_position = 4}}));
  RunAndWait(device(), NextBatch(requests));
  EXPECT_TRUE(requests[0]->AnsweredRight());
  EXPECT_EQ(requests[1]->Wait().status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(requests[2]->AnsweredRight());
  EXPECT_FALSE(cache_->IsLost(layer.layer));
}

TEST_P(ResidentBatchTest, InvalidWorksDoNotBegin) {
  TestLayer& layer = MakeLayer();
  Requests requests;
  for (int i = 0; i < 3; ++i) {
    requests.push_back(Request({{.layer = &layer, .append = 1}}));
  }
  layer = {.layer = layer.layer};
  requests.push_back(Request({{.layer = &layer, .append = 2, .queries = 2}}));
  requests[0]->work().key.fragments.clear();
  requests[1]->work().kv_steps.pop_back();
  requests[2]->work().sequences[0].shape.window_right = -2;
  RunAndWait(device(), NextBatch(requests));
  EXPECT_EQ(requests[0]->Wait().status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(requests[1]->Wait().status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(requests[2]->Wait().status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(requests[3]->AnsweredRight());
}

// The scheduler numbers batches when it forms them; they may come to the device
// in another order.
TEST_P(ResidentBatchTest, BatchesAreComputedInTheOrderOfTheirNumbers) {
  TestLayer& layer = MakeLayer();
  for (int i = 0; i < 10; ++i) {
    Requests first =
        OneRequest({{.layer = &layer, .append = 17, .queries = 17}});
    Requests second =
        OneRequest({{.layer = &layer, .append = 1, .queries = 1}});
    auto first_batch = NextBatch(first);
    auto second_batch = NextBatch(second);
    absl::BlockingCounter free(2);
    const auto run = [&](std::unique_ptr<Batch> batch) {
      device().Run(std::move(batch), [&free] { free.DecrementCount(); });
    };
    run(std::move(second_batch));
    run(std::move(first_batch));
    free.Wait();
    EXPECT_TRUE(first[0]->AnsweredRight());
    EXPECT_TRUE(second[0]->AnsweredRight());
  }
}

TEST_P(ResidentBatchTest, AShortBatchIsComputedByTheCaller) {
  TestLayer& layer = MakeLayer();
  Requests requests =
      OneRequest({{.layer = &layer, .append = 2, .queries = 2}});
  auto batch = NextBatch(requests);
  batch->is_short = true;
  bool is_free = false;
  device().Run(std::move(batch), [&is_free] { is_free = true; });
  EXPECT_TRUE(is_free);
  EXPECT_TRUE(requests[0]->AnsweredRight());
}

TEST_P(ResidentBatchTest, CountsWhatIsRead) {
  TestLayer& layer = MakeLayer();
  ExpectRight(OneRequest({{.layer = &layer, .append = 99}}));
  EXPECT_EQ(engine().Metric("attention_resident_bytes_read_total"), 0);
  ExpectRight(OneRequest({{.layer = &layer, .append = 1, .queries = 1}},
                         {.estimated_length = 7}));
  EXPECT_EQ(engine().Metric("attention_resident_bytes_read_total"),
            100 * 2 * (80 + 48));
  EXPECT_EQ(engine().Metric("attention_flops_total"),
            2.0 * 100 * 6 * (40 + 24));
  EXPECT_GT(engine().Metric("attention_achieved_resident_bytes_per_second"), 0);
  EXPECT_EQ(engine().Metric("attention_batches_total"), 2);
}

// Few tokens of many bytes.
constexpr PagedConfig kWide = {.heads = {.data_type = DataType::kFloat32,
                                         .head_dim_qk = 256,
                                         .head_dim_v = 256,
                                         .query_head_count = 1,
                                         .kv_head_count = 1,
                                         .mask = MaskKind::kCausalBottomRight},
                               .page_tokens = 16};
// Room for some of the works at a time, and on a GPU for scratch memory.
constexpr EngineBudgets kTightCpu = {.host_bytes = size_t{3500} << 10};
constexpr EngineBudgets kTightGpu = {.host_bytes = size_t{7} << 20};

class TightMemoryTest : public ResidentBatchTest {
 protected:
  void SetUp() override {
    StartWith(kWide, GetParam() == EngineBackend::kCpu ? kTightCpu : kTightGpu);
    if (IsSkipped()) return;
    if (engine().fake_cuda() == nullptr && engine().device_pool() != nullptr) {
      GTEST_SKIP() << "budgets are those of the fake device";
    }
  }

  // Some 700 KB of inputs; results are few.
  std::unique_ptr<ResidentRequest> LargeRequest(TestLayer& layer) {
    return Request({{.layer = &layer, .append = 350, .queries = 1}},
                   {.fragment_bytes = 65535});
  }
};
INSTANTIATE_FOR_ENGINES(TightMemoryTest);

TEST_P(TightMemoryTest, SplitsABatchInOrder) {
  TestLayer& layer = MakeLayer();
  Requests requests;
  for (int i = 0; i < 6; ++i) {
    // The small one would fit beside what is there when the large ones do not.
    requests.push_back(LargeRequest(layer));
    requests.push_back(Request({{.layer = &layer, .append = 1, .queries = 1}}));
  }
  // Nobody hears of the batch before all of it has begun.
  int answers_before_the_end = 0;
  for (auto& request : requests) {
    auto& done = request->work().done;
    done = [&,
            done = std::move(done)](absl::StatusOr<WorkResult> result) mutable {
      answers_before_the_end += cache_->ended().empty();
      done(std::move(result));
    };
  }
  RunAndWait(device(), NextBatch(requests));
  for (auto& request : requests) EXPECT_TRUE(request->AnsweredRight());
  EXPECT_LT(requests.front()->Wait()->batch_request_count, 12) << "not split";
  EXPECT_EQ(answers_before_the_end, 0);
  EXPECT_THAT(cache_->ended(), ElementsAre(Pair(0, true)));
}

TEST_P(TightMemoryTest, WhatNeverFitsDoesNotBegin) {
  TestLayer& layer = MakeLayer();
  TestLayer other;
  other.layer = layer.layer;
  Requests requests;
  requests.push_back(
      Request({{.layer = &other, .append = 4000}}, {.fragment_bytes = 65535}));
  requests.push_back(Request(
      {{.layer = &layer, .append = 2, .queries = 2, .expected_position = 0}}));
  RunAndWait(device(), NextBatch(requests));
  const absl::Status status = requests[0]->Wait().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(status), error_reason::kOutOfMemory);
  EXPECT_TRUE(requests[1]->AnsweredRight());
  EXPECT_FALSE(cache_->IsLost(layer.layer));
}

TEST_P(TightMemoryTest, ABatchOfWhichNothingFitsEnds) {
  TestLayer& layer = MakeLayer();
  Requests requests = OneRequest({{.layer = &layer, .append = 4000}},
                                 {.fragment_bytes = 65535});
  RunAndWait(device(), NextBatch(requests));
  EXPECT_EQ(requests[0]->Wait().status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(cache_->Length(layer.layer), 0);
  EXPECT_THAT(cache_->ended(), ElementsAre(Pair(0, true)));
}

// Two threads that bring the batches of eight sessions, as the scheduler does:
// numbered under a lock, run without it, no more of them than there are slots.
TEST_P(ResidentBatchTest, StormOfBatches) {
  constexpr int kBatches = 60;
  absl::Mutex mutex;
  int in_flight = 0;
  std::vector<Requests> batches(kBatches);
  for (int i = 0; i < 8; ++i) MakeLayer();
  size_t next = 0;
  const auto bring = [&] {
    for (;;) {
      std::unique_ptr<Batch> batch;
      {
        const auto has_slot = [&] { return in_flight < device().slot_count(); };
        absl::MutexLock lock(&mutex, absl::Condition(&has_slot));
        if (next == batches.size()) return;
        Requests& requests = batches[next];
        for (auto& layer : layers_) {
          if ((seed_ + next) % 3 == 0) continue;
          requests.push_back(
              Request({{.layer = layer.get(), .append = 2, .queries = 2}}));
        }
        requests.push_back(
            Request({{.layer = layers_[0].get(), .append = 1, .queries = 1}}));
        batch = NextBatch(requests);
        batch->is_short = next++ % 2 == 0;
        ++in_flight;
      }
      device().Run(std::move(batch), [&] {
        absl::MutexLock lock(&mutex);
        --in_flight;
      });
    }
  };
  std::thread other(bring);
  bring();
  other.join();
  const auto all_free = [&] { return in_flight == 0; };
  absl::MutexLock lock(&mutex, absl::Condition(&all_free));
  for (Requests& requests : batches) {
    for (auto& request : requests) EXPECT_TRUE(request->AnsweredRight());
  }
}

}  // namespace
}  // namespace attention::test
