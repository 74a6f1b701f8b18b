// What every device promises, on every backend.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/engine/error_reason.h"
#include "tests/server/engine/engine_fixture.h"

namespace attention::test {
namespace {

using ::testing::HasSubstr;
using Requests = std::vector<std::unique_ptr<TestRequest>>;

constexpr HeadConfig kSmall = {.data_type = DataType::kFloat32,
                               .head_dim_qk = 16,
                               .head_dim_v = 16,
                               .query_head_count = 2,
                               .kv_head_count = 2};
constexpr HeadConfig kGrouped = {.data_type = DataType::kBFloat16,
                                 .head_dim_qk = 40,
                                 .head_dim_v = 24,
                                 .query_head_count = 6,
                                 .kv_head_count = 2,
                                 .mask = MaskKind::kCausalBottomRight};

Requests MakeRequests(std::vector<WorkSpec> specs) {
  Requests requests;
  for (WorkSpec& spec : specs) {
    spec.seed += requests.size();
    requests.push_back(std::make_unique<TestRequest>(std::move(spec)));
  }
  return requests;
}

// Needs about `bytes` of staging memory and next to none for its answer.
WorkSpec LargeInput(size_t bytes) {
  const int64_t keys = static_cast<int64_t>(bytes / 2 / sizeof(float) / 16);
  return {.config = {.head_dim_qk = 16,
                     .head_dim_v = 16,
                     .query_head_count = 1,
                     .kv_head_count = 1},
          .lengths = {{1, keys}},
          .fragment_bytes = 65536,
          .misalignment = 1};
}

class DeviceTest : public EngineTest {};
INSTANTIATE_FOR_ENGINES(DeviceTest);

TEST_P(DeviceTest, OneRequest) {
  ExpectRight({{.config = kSmall, .lengths = {{33, 65}}}});
}

TEST_P(DeviceTest, RaggedWorksShareABatch) {
  ExpectRight({{.config = kGrouped,
                .lengths = {{1, 77}, {64, 64}, {5, 3}},
                .log_sum_exp = true},
               {.config = kGrouped, .lengths = {{128, 130}}},
               {.config = kGrouped,
                .lengths = {{7, 7}, {2, 300}},
                .log_sum_exp = true,
                .window_left = 20}});
}

// To send answers takes longer than to compute small works.
TEST_P(DeviceTest, ManyAnswersAreGivenByMoreThanOneThread) {
  if (GetParam() == EngineBackend::kCpu) {
    GTEST_SKIP() << "the kernels' threads would be in the way";
  }
  Requests requests = MakeRequests(
      std::vector<WorkSpec>(8, {.config = kSmall, .lengths = {{3, 5}}}));
  auto batch = MakeBatch(requests);
  absl::Mutex mutex;
  int given_at_once = 0;
  bool were_two = false;
  for (auto& work : batch->works) {
    work->done = [&, done = std::move(work->done)](
                     absl::StatusOr<WorkResult> result) mutable {
      {
        absl::MutexLock lock(&mutex);
        were_two |= ++given_at_once > 1;
        mutex.AwaitWithTimeout(absl::Condition(&were_two), absl::Minutes(1));
        --given_at_once;
      }
      done(std::move(result));
    };
  }
  RunAndWait(device(), std::move(batch));
  EXPECT_TRUE(were_two);
  for (auto& request : requests) EXPECT_TRUE(request->AnsweredRight());
}

TEST_P(DeviceTest, MeasurementsAreNotCounted) {
  for (const bool is_measurement : {true, false}) {
    std::vector<std::unique_ptr<TestRequest>> requests;
    requests.push_back(std::make_unique<TestRequest>(
        WorkSpec{.config = kSmall, .lengths = {{3, 5}}}));
    auto batch = MakeBatch(requests);
    batch->is_measurement = is_measurement;
    RunAndWait(device(), std::move(batch));
    EXPECT_TRUE(requests[0]->AnsweredRight());
    const double count = is_measurement ? 0 : 1;
    EXPECT_EQ(engine().Metric("attention_batches_total"), count);
    EXPECT_EQ(engine().SampleCount("attention_batch_requests"), count);
    EXPECT_EQ(engine().Metric("attention_batches_in_flight"), 0);
  }
}

TEST_P(DeviceTest, EveryTypeAndMask) {
  for (DataType type :
       {DataType::kFloat32, DataType::kFloat16, DataType::kBFloat16}) {
    for (MaskKind mask : {MaskKind::kNone, MaskKind::kCausalTopLeft,
                          MaskKind::kCausalBottomRight}) {
      HeadConfig config = kGrouped;
      config.data_type = type;
      config.mask = mask;
      ExpectRight({{.config = config,
                    .lengths = {{40, 19}, {17, 90}},
                    .log_sum_exp = true,
                    .scale = 0.3}});
    }
  }
}

TEST_P(DeviceTest, WeightsAreReturned) {
  HeadConfig config = kGrouped;
  config.algorithm = Algorithm::kThreeStep;
  ExpectRight({{.config = config,
                .lengths = {{20, 31}, {3, 3}},
                .log_sum_exp = true,
                .weights = true},
               {.config = config, .lengths = {{9, 50}}}});
}

TEST_P(DeviceTest, PaddingIsCleared) {
  const WorkSpec padded = {.config = kGrouped,
                           .lengths = {{5, 9}, {12, 1}, {0, 7}, {3, 0}},
                           .padded_query_length = 12,
                           .padded_key_length = 9,
                           .log_sum_exp = true};
  const WorkSpec dense = {
      .config = kGrouped, .lengths = {{48, 48}}, .log_sum_exp = true};
  // The dense answers leave values behind in the memory that is used again.
  for (int i = 0; i < 3; ++i) {
    ExpectRight({dense, dense});
    ExpectRight({padded, dense, padded});
  }
}

TEST_P(DeviceTest, FragmentsMayBeCutAndLieAnywhere) {
  for (DataType type : {DataType::kBFloat16, DataType::kFloat8E4M3}) {
    HeadConfig config = kGrouped;
    config.data_type = type;
    for (size_t fragment_bytes : {0, 1, 7, 1000, 4096}) {
      for (size_t misalignment : {0, 1, 2, 3}) {
        ExpectRight({{.config = config,
                      .lengths = {{10, 20}, {1, 5}},
                      .fragment_bytes = fragment_bytes,
                      .misalignment = misalignment},
                     {.config = config, .lengths = {{3, 3}}}});
      }
    }
  }
}

TEST_P(DeviceTest, ScalesAreThoseOfEachWork) {
  HeadConfig config = kGrouped;
  config.data_type = DataType::kFloat8E4M3;
  ExpectRight({{.config = config, .lengths = {{10, 20}}, .scales = true},
               {.config = config, .lengths = {{7, 9}}},
               {.config = config,
                .lengths = {{5, 0}, {1, 30}, {3, 5}},
                .padded_query_length = 6,
                .padded_key_length = 30,
                .log_sum_exp = true,
                .scales = true}});
}

TEST_P(DeviceTest, LargePayloadsInManyFragments) {
  // Beyond every chunk in which a device may copy.
  WorkSpec spec = LargeInput(size_t{11} << 20);
  ExpectRight({spec});
  spec.fragment_bytes = (size_t{4} << 20) + 4;
  ExpectRight({spec, LargeInput(4096)});
  // Beyond what one thread gathers alone.
  ExpectRight({LargeInput(4096), LargeInput(size_t{18} << 20), spec});
}

TEST_P(DeviceTest, SourcesMixWithFragments) {
  WorkSpec large = LargeInput(9 << 20);  // several chunks of a copy
  large.source_bytes = 9 << 20;
  WorkSpec small = large;
  small.lengths = {{5, 7}};
  WorkSpec fragments = small;
  fragments.source_bytes.reset();
  ExpectRight({large, fragments, small});
}

TEST_P(DeviceTest, FailingSourceFailsAlone) {
  WorkSpec good = LargeInput(1 << 16);
  WorkSpec failing = LargeInput(9 << 20);
  failing.source_bytes = 4300000;  // within the second chunk
  Requests requests = MakeRequests({good, failing, good});
  RunAndWait(device(), MakeBatch(requests));
  EXPECT_TRUE(requests[0]->AnsweredRight());
  EXPECT_TRUE(absl::IsFailedPrecondition(requests[1]->Wait().status()))
      << requests[1]->Wait().status();
  EXPECT_TRUE(requests[2]->AnsweredRight());
  EXPECT_EQ(engine().Metric("attention_batch_failures_total"), 0);
}

TEST_P(DeviceTest, EmptyWorks) {
  HeadConfig no_heads = kSmall;
  no_heads.query_head_count = no_heads.kv_head_count = 0;
  ExpectRight({{.config = no_heads, .lengths = {{4, 4}}, .log_sum_exp = true}});
  ExpectRight({{.config = kSmall, .lengths = {}, .log_sum_exp = true}});
  ExpectRight({{.config = kSmall, .lengths = {}},
               {.config = kSmall, .lengths = {{8, 8}}},
               {.config = kSmall, .lengths = {{0, 8}}, .log_sum_exp = true},
               {.config = kSmall, .lengths = {{8, 0}}, .log_sum_exp = true},
               {.config = kSmall, .lengths = {{0, 0}, {2, 3}, {0, 0}}}});
}

TEST_P(DeviceTest, BigAndSmallBatchesDoNotMixTheirData) {
  for (int64_t length : {300, 3, 257, 1, 300}) {
    ExpectRight({{.config = kSmall,
                  .lengths = {{length, length}},
                  .log_sum_exp = true,
                  .fragment_bytes = 999},
                 {.config = kSmall, .lengths = {{2, length}}}});
  }
}

TEST_P(DeviceTest, AnswersDoNotDependOnTheBatch) {
  const WorkSpec spec = {
      .config = kGrouped, .lengths = {{30, 90}, {1, 40}}, .log_sum_exp = true};
  Requests alone = MakeRequests({spec});
  RunAndWait(device(), MakeBatch(alone));
  Requests together =
      MakeRequests({spec, {.config = kGrouped, .lengths = {{200, 200}}}, spec});
  RunAndWait(device(), MakeBatch(together));
  ASSERT_TRUE(alone[0]->AnsweredRight());
  EXPECT_EQ(alone[0]->ResultBits(), together[0]->ResultBits());
}

TEST_P(DeviceTest, AnswerTellsHowItCameAbout) {
  Requests requests = MakeRequests(
      {{.config = kSmall, .lengths = {{8, 8}, {8, 8}}, .fragment_bytes = 100},
       {.config = kSmall, .lengths = {{8, 8}}}});
  const absl::Time now = absl::FromUnixSeconds(1000);
  requests[0]->work().arrival_time = now - absl::Milliseconds(30);
  requests[1]->work().arrival_time = now - absl::Milliseconds(20);
  std::unique_ptr<Batch> batch = MakeBatch(requests);
  batch->start_time = now;
  RunAndWait(device(), std::move(batch));
  for (const auto& request : requests) {
    ASSERT_TRUE(request->Wait().ok());
    EXPECT_EQ(request->Wait()->batch_request_count, 2);
    EXPECT_EQ(request->Wait()->batch_sequence_count, 3);
    EXPECT_EQ(request->Wait()->device_name, device().description().name);
    EXPECT_GT(request->Wait()->compute_duration, absl::ZeroDuration());
    EXPECT_GT(request->Wait()->copy_in_duration, absl::ZeroDuration());
  }
  EXPECT_EQ(requests[0]->Wait()->queue_duration, absl::Milliseconds(30));
  EXPECT_EQ(requests[1]->Wait()->queue_duration, absl::Milliseconds(20));
}

TEST_P(DeviceTest, PayloadsAreReleased) {
  Requests requests = MakeRequests(
      {{.config = kSmall, .lengths = {{8, 8}}},
       {.config = kSmall, .lengths = {{8, 8}}, .fragment_bytes = 10},
       {.config = kSmall, .lengths = {}}});
  std::vector<bool> released(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    AttentionWork& work = requests[i]->work();
    work.done = [&released, i, request = requests[i].get(),
                 done = std::move(work.done)](
                    absl::StatusOr<WorkResult> result) mutable {
      released[i] = request->payload_released();
      done(std::move(result));
    };
  }
  RunAndWait(device(), MakeBatch(requests));
  EXPECT_THAT(released, testing::Each(true));
}

TEST_P(DeviceTest, WorkOverBudgetFailsAlone) {
  Start({.host_bytes = 4 << 20, .device_bytes = 4 << 20});
  const WorkSpec good = {.config = kSmall, .lengths = {{20, 30}}};
  Requests requests = MakeRequests({good, LargeInput(8 << 20), good});
  RunAndWait(device(), MakeBatch(requests));
  EXPECT_TRUE(requests[0]->AnsweredRight());
  EXPECT_TRUE(requests[2]->AnsweredRight());
  const absl::Status status = requests[1]->Wait().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(status), error_reason::kOutOfMemory);
  EXPECT_THAT(std::string(status.message()), HasSubstr("4194304"));
  EXPECT_TRUE(requests[1]->payload_released());
  EXPECT_EQ(requests[0]->Wait()->batch_request_count, 2);
  EXPECT_EQ(engine().Metric("attention_batch_failures_total"), 0);
}

TEST_P(DeviceTest, ResultOverBudgetFailsAlone) {
  Start({.host_bytes = 1 << 20, .device_bytes = 64 << 20});
  WorkSpec large = {.config = kSmall, .lengths = {{10000, 1}}};
  Requests requests =
      MakeRequests({large, {.config = kSmall, .lengths = {{4, 4}}}});
  RunAndWait(device(), MakeBatch(requests));
  EXPECT_EQ(requests[0]->Wait().status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(requests[1]->AnsweredRight());
}

TEST_P(DeviceTest, BatchThatDoesNotFitIsSplit) {
  Start({.host_bytes = 1 << 20, .device_bytes = 16 << 20});
  Requests requests = MakeRequests(
      std::vector<WorkSpec>(7, LargeInput(400 << 10)));  // two fit at a time
  RunAndWait(device(), MakeBatch(requests));
  for (const auto& request : requests) EXPECT_TRUE(request->AnsweredRight());
  EXPECT_EQ(engine().SampleCount("attention_batch_requests"), 1u);
  EXPECT_EQ(engine().Metric("attention_batches_total"), 1);
}

TEST_P(DeviceTest, MemoryIsGivenBack) {
  {
    Requests requests = MakeRequests({{.config = kSmall,
                                       .lengths = {{64, 64}},
                                       .log_sum_exp = true,
                                       .fragment_bytes = 333}});
    RunAndWait(device(), MakeBatch(requests));
    EXPECT_GE(engine().host_pool().usage().in_use_bytes,
              64u * 2 * 16 * sizeof(float) + 64u * 2 * sizeof(float))
        << "the results are the pool's own blocks";
  }
  EXPECT_EQ(engine().host_pool().usage().in_use_bytes, 0u);
  if (engine().device_pool() != nullptr) {
    EXPECT_EQ(engine().device_pool()->usage().in_use_bytes, 0u);
  }
}

TEST_P(DeviceTest, InvalidWorkFailsAlone) {
  WorkSpec invalid = {.config = kSmall,
                      .lengths = {{4, 4}},
                      .scale = std::numeric_limits<double>::quiet_NaN()};
  Requests requests =
      MakeRequests({invalid, {.config = kSmall, .lengths = {{4, 4}}}});
  RunAndWait(device(), MakeBatch(requests));
  EXPECT_EQ(requests[0]->Wait().status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(requests[0]->Wait().status()),
            error_reason::kInvalidRequest);
  EXPECT_TRUE(requests[1]->AnsweredRight());
}

TEST_P(DeviceTest, MetricsAreConserved) {
  Start({.host_bytes = 1 << 20, .device_bytes = 1 << 20});
  auto run = [&](std::vector<WorkSpec> specs) {
    Requests requests = MakeRequests(std::move(specs));
    RunAndWait(device(), MakeBatch(requests));
    for (const auto& request : requests) EXPECT_EQ(request->done_count(), 1);
  };
  const WorkSpec good = {
      .config = kSmall, .lengths = {{16, 32}}, .fragment_bytes = 50};
  run({good, good});
  run({LargeInput(4 << 20), LargeInput(4 << 20)});  // none fits
  run({good, LargeInput(4 << 20)});

  EXPECT_EQ(engine().Metric("attention_batches_in_flight"), 0);
  EXPECT_EQ(engine().Metric("attention_batches_total"), 2);
  EXPECT_EQ(engine().Metric("attention_batch_failures_total"), 1);
  EXPECT_EQ(engine().Metric("attention_batch_failures_total", "code",
                            "RESOURCE_EXHAUSTED"),
            1);
  // 2 products of 2 FLOPs each over 16 dims, 2 heads, 16 x 32 pairs, 3 works.
  EXPECT_EQ(engine().Metric("attention_flops_total"),
            3.0 * 2 * 2 * 16 * 2 * 16 * 32);
  EXPECT_EQ(engine().Metric("attention_copied_bytes_total", "direction", "in"),
            3.0 * 2 * 16 * sizeof(float) * (16 + 32 + 32));
  EXPECT_GT(engine().Metric("attention_compute_seconds_total"), 0);
}

TEST_P(DeviceTest, RunReturnsBeforeTheAnswer) {
  ASSERT_GE(device().slot_count(), 2);
  absl::Notification returned;
  Requests requests = MakeRequests({{.config = kSmall, .lengths = {{4, 4}}}});
  AttentionWork& work = requests[0]->work();
  bool in_time = false;
  work.done = [&, done = std::move(work.done)](
                  absl::StatusOr<WorkResult> result) mutable {
    in_time = returned.WaitForNotificationWithTimeout(absl::Minutes(1));
    done(std::move(result));
  };
  absl::Notification free;
  device().Run(MakeBatch(requests), [&free] { free.Notify(); });
  returned.Notify();
  free.WaitForNotification();
  EXPECT_TRUE(in_time);
}

TEST_P(DeviceTest, SlotsWorkAtTheSameTime) {
  // The first batch's answer is held back until the second's has arrived.
  Requests first = MakeRequests({{.config = kSmall, .lengths = {{4, 4}}}});
  Requests second = MakeRequests({{.config = kSmall, .lengths = {{4, 4}}}});
  AttentionWork& work = first[0]->work();
  bool overlapped = false;
  work.done = [&, done = std::move(work.done)](
                  absl::StatusOr<WorkResult> result) mutable {
    overlapped = second[0]->Wait().ok();
    done(std::move(result));
  };
  absl::BlockingCounter free(2);
  device().Run(MakeBatch(first), [&free] { free.DecrementCount(); });
  device().Run(MakeBatch(second), [&free] { free.DecrementCount(); });
  free.Wait();
  EXPECT_TRUE(overlapped);
}

TEST_P(DeviceTest, DestructorWaitsForBatchesInFlight) {
  std::vector<Requests> batches;
  int free_count = 0;
  for (int i = 0; i < 8; ++i) {
    batches.push_back(
        MakeRequests({{.config = kGrouped, .lengths = {{50, 80}}},
                      {.config = kGrouped, .lengths = {{9, 9}}}}));
  }
  absl::Mutex mutex;
  for (Requests& requests : batches) {
    device().Run(MakeBatch(requests), [&] {
      absl::MutexLock lock(&mutex);
      ++free_count;
    });
  }
  engine().DestroyDevice();
  absl::MutexLock lock(&mutex);
  EXPECT_EQ(free_count, 8);
  for (Requests& requests : batches) {
    for (const auto& request : requests) {
      ASSERT_TRUE(request->done());
      EXPECT_TRUE(request->AnsweredRight());
    }
  }
}

TEST_P(DeviceTest, ManyCallersAtOnce) {
  Start({.host_bytes = 3 << 20, .device_bytes = 3 << 20});
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      for (int i = 0; i < 6; ++i) {
        Requests requests =
            MakeRequests({{.config = kSmall,
                           .lengths = {{10 + caller, 20}, {i, 7}},
                           .log_sum_exp = i % 2 == 0,
                           .fragment_bytes = static_cast<size_t>(i % 3) * 100},
                          {.config = kSmall, .lengths = {{3, 3}}}});
        RunAndWait(device(), MakeBatch(requests));
        for (const auto& request : requests) {
          EXPECT_TRUE(request->AnsweredRight()) << caller << " " << i;
        }
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(engine().Metric("attention_batches_in_flight"), 0);
  EXPECT_EQ(engine().Metric("attention_batches_total"), 24);
}

}  // namespace
}  // namespace attention::test
