// Whose memory works use, on every backend: budgets, what is given back, what
// is counted.
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/engine/error_reason.h"
#include "tests/server/engine/engine_fixture.h"

namespace attention::test {
namespace {

using ::testing::HasSubstr;

class DeviceMemoryTest : public EngineTest {};
INSTANTIATE_FOR_ENGINES(DeviceMemoryTest);

TEST_P(DeviceMemoryTest, PayloadsAreReleased) {
  Requests requests = MakeRequests(
      {{.config = kSmallConfig, .lengths = {{8, 8}}},
       {.config = kSmallConfig, .lengths = {{8, 8}}, .fragment_bytes = 10},
       {.config = kSmallConfig, .lengths = {}}});
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

TEST_P(DeviceMemoryTest, WorkOverBudgetFailsAlone) {
  Start({.host_bytes = 4 << 20, .device_bytes = 4 << 20});
  const WorkSpec good = {.config = kSmallConfig, .lengths = {{20, 30}}};
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

TEST_P(DeviceMemoryTest, ResultOverBudgetFailsAlone) {
  Start({.host_bytes = 1 << 20, .device_bytes = 64 << 20});
  WorkSpec large = {.config = kSmallConfig, .lengths = {{10000, 1}}};
  Requests requests =
      MakeRequests({large, {.config = kSmallConfig, .lengths = {{4, 4}}}});
  RunAndWait(device(), MakeBatch(requests));
  EXPECT_EQ(requests[0]->Wait().status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(requests[1]->AnsweredRight());
}

TEST_P(DeviceMemoryTest, BatchThatDoesNotFitIsSplit) {
  Start({.host_bytes = 1 << 20, .device_bytes = 16 << 20});
  Requests requests = MakeRequests(
      std::vector<WorkSpec>(7, LargeInput(400 << 10)));  // two fit at a time
  RunAndWait(device(), MakeBatch(requests));
  for (const auto& request : requests) EXPECT_TRUE(request->AnsweredRight());
  EXPECT_EQ(engine().SampleCount("attention_batch_requests"), 1u);
  EXPECT_EQ(engine().Metric("attention_batches_total"), 1);
}

TEST_P(DeviceMemoryTest, MemoryIsGivenBack) {
  {
    Requests requests = MakeRequests({{.config = kSmallConfig,
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

TEST_P(DeviceMemoryTest, MetricsAreConserved) {
  Start({.host_bytes = 1 << 20, .device_bytes = 1 << 20});
  auto run = [&](std::vector<WorkSpec> specs) {
    Requests requests = MakeRequests(std::move(specs));
    RunAndWait(device(), MakeBatch(requests));
    for (const auto& request : requests) EXPECT_EQ(request->done_count(), 1);
  };
  const WorkSpec good = {
      .config = kSmallConfig, .lengths = {{16, 32}}, .fragment_bytes = 50};
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

}  // namespace
}  // namespace attention::test
