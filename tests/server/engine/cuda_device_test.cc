// How a CUDA device takes errors of the runtime, on a fake one.
#include "server/engine/cuda/cuda_device.h"

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/engine/cuda/cuda_allocators.h"
#include "server/engine/error_reason.h"
#include "tests/server/engine/engine_fixture.h"

namespace attention::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Call = FakeCudaRuntime::Call;

constexpr HeadConfig kConfig = {.head_dim_qk = 8,
                                .head_dim_v = 8,
                                .query_head_count = 1,
                                .kv_head_count = 1};

class CudaDeviceTest : public testing::Test {
 protected:
  Device& device() { return *engine_.device(); }
  FakeCudaRuntime& cuda() { return *engine_.fake_cuda(); }

  // A batch of `count` works, run and waited for.
  Requests Run(int count, WorkSpec spec = {.config = kConfig,
                                           .lengths = {{5, 6}},
                                           .padded_query_length = 7,
                                           .log_sum_exp = true}) {
    Requests requests;
    for (int i = 0; i < count; ++i) {
      spec.seed = i + 1;
      requests.push_back(std::make_unique<TestRequest>(spec));
    }
    RunAndWait(device(), MakeBatch(requests));
    return requests;
  }

  void ExpectFailed(Requests& requests, absl::StatusCode code,
                    std::string_view reason) {
    for (const auto& request : requests) {
      const absl::Status status = request->Wait().status();
      EXPECT_EQ(status.code(), code) << status;
      EXPECT_EQ(ReasonOf(status), reason);
      EXPECT_EQ(request->done_count(), 1);
      EXPECT_TRUE(request->payload_released());
    }
  }

  void ExpectRight(Requests& requests) {
    for (const auto& request : requests) {
      EXPECT_TRUE(request->AnsweredRight());
    }
  }

  void ExpectBatches(int finished, int failed) {
    EXPECT_EQ(engine_.Metric("attention_batches_in_flight"), 0);
    EXPECT_EQ(engine_.Metric("attention_batches_total"), finished);
    EXPECT_EQ(engine_.Metric("attention_batch_failures_total"), failed);
    EXPECT_EQ(engine_.host_pool().usage().in_use_bytes, 0u);
    EXPECT_EQ(engine_.device_pool()->usage().in_use_bytes, 0u);
  }

  TestEngine engine_{EngineBackend::kFakeCuda};
};

constexpr Call kCalls[] = {Call::kCopyToDevice, Call::kCopyToHost,
                           Call::kClearDevice,  Call::kFillDevice,
                           Call::kLaunch,       Call::kSynchronize,
                           Call::kRecordEvent,  Call::kElapsedTime};

TEST_F(CudaDeviceTest, DescribesTheGpu) {
  const DeviceDescription& description = device().description();
  EXPECT_EQ(description.name, "cuda:0");
  EXPECT_EQ(description.backend, "cuda");
  EXPECT_EQ(description.model, "Fake GPU");
  EXPECT_EQ(description.compute_capability, "9.0");
  EXPECT_EQ(description.memory_bytes, size_t{1} << 30);
  EXPECT_EQ(description.memory_budget_bytes,
            engine_.device_pool()->usage().budget_bytes);
  EXPECT_EQ(description.processor_count, 4);
}

TEST_F(CudaDeviceTest, OneLaunchForAllWorksOfABatch) {
  Requests requests = Run(9);
  ExpectRight(requests);
  EXPECT_EQ(cuda().launches(), 1);
}

TEST_F(CudaDeviceTest, OneCopyEachWayForSmallWorks) {
  Requests requests =
      Run(9, {.config = kConfig, .lengths = {{5, 6}}, .log_sum_exp = true});
  ExpectRight(requests);
  EXPECT_EQ(cuda().calls(Call::kCopyToDevice), 1);
  EXPECT_EQ(cuda().calls(Call::kCopyToHost), 1);
}

TEST_F(CudaDeviceTest, LargeWorksAmongSmallOnesHaveMemoryOfTheirOwn) {
  const WorkSpec small = {
      .config = kConfig, .lengths = {{5, 6}}, .log_sum_exp = true};
  const WorkSpec large = {.config = kConfig,
                          .lengths = {{20, 60000}},  // 4 MB in
                          .fragment_bytes = 70000};
  const WorkSpec long_answer = {.config = kConfig, .lengths = {{20000, 1}}};
  Requests requests;
  for (const WorkSpec& spec :
       {small, small, large, small, long_answer, small, small, large}) {
    requests.push_back(std::make_unique<TestRequest>(spec));
  }
  RunAndWait(device(), MakeBatch(requests));
  ExpectRight(requests);
  EXPECT_EQ(cuda().launches(), 1);
  EXPECT_EQ(cuda().calls(Call::kCopyToHost), 6) << "2 + 1 + 1 + 1 + 2 + 1";
}

// An invalid work leaves a gap among those that share memory.
TEST_F(CudaDeviceTest, GapsInSharedMemoryDoNotMatter) {
  const WorkSpec good = {.config = kConfig, .lengths = {{5, 6}}};
  WorkSpec invalid = good;
  invalid.scale = std::numeric_limits<double>::infinity();
  Requests requests;
  for (const WorkSpec& spec : {good, good, invalid, good, good}) {
    requests.push_back(std::make_unique<TestRequest>(spec));
  }
  RunAndWait(device(), MakeBatch(requests));
  EXPECT_EQ(requests[2]->Wait().status().code(),
            absl::StatusCode::kInvalidArgument);
  requests.erase(requests.begin() + 2);
  ExpectRight(requests);
  EXPECT_EQ(cuda().calls(Call::kCopyToHost), 2);
}

TEST_F(CudaDeviceTest, AnswerKeepsSharedMemoryUntilItIsGone) {
  Requests requests = Run(3);
  requests.erase(requests.begin(), requests.begin() + 2);
  EXPECT_GT(engine_.host_pool().usage().in_use_bytes, 0u);
  ExpectRight(requests);
  requests.clear();
  EXPECT_EQ(engine_.host_pool().usage().in_use_bytes, 0u);
}

TEST_F(CudaDeviceTest, WarmUpLaunchesOnEverySlotAndIsNotCounted) {
  const auto warm = CreateCudaDevice({.slot_count = 3, .warm_up = true},
                                     &cuda(), &engine_.host_pool(),
                                     engine_.device_pool(), &engine_.metrics());
  ASSERT_TRUE(warm.ok()) << warm.status();
  // On 3 slots, 4 types, 2 head dimensions, with and without a causal mask.
  EXPECT_EQ(cuda().launches(), 3 * 4 * 2 * 2);
  // Of 3 types, as they are and stored as fp8, with one query and with many.
  EXPECT_EQ(cuda().calls(Call::kLaunchPaged), 3 * 3 * 2 * 2 * 2);
  ExpectBatches(/*finished=*/0, /*failed=*/0);
}

TEST_F(CudaDeviceTest, WarmUpThatFailsIsReported) {
  cuda().FailCall(Call::kLaunch, 5, /*sticky=*/false);
  const auto device =
      CreateCudaDevice({.warm_up = true}, &cuda(), &engine_.host_pool(),
                       engine_.device_pool(), &engine_.metrics());
  EXPECT_EQ(device.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(device.status().message()),
              HasSubstr("injected CUDA error"));
  ExpectBatches(/*finished=*/0, /*failed=*/0);
}

TEST_F(CudaDeviceTest, PassingErrorFailsItsBatchOnly) {
  int failed = 0;
  for (Call call : kCalls) {
    for (int n : {1, 2}) {
      if (n == 2 &&
          (call == Call::kLaunch || call == Call::kSynchronize ||
           call == Call::kCopyToDevice || call == Call::kCopyToHost)) {
        continue;  // made once per batch
      }
      SCOPED_TRACE(static_cast<int>(call));
      cuda().FailCall(call, n, /*sticky=*/false);
      Requests requests = Run(3);
      ExpectFailed(requests, absl::StatusCode::kInternal,
                   error_reason::kInternal);
      EXPECT_THAT(std::string(requests[0]->Wait().status().message()),
                  HasSubstr("injected CUDA error"));
      ++failed;
      Requests next = Run(3);
      ExpectRight(next);
    }
  }
  EXPECT_TRUE(device().health().ok());
  EXPECT_EQ(engine_.failure_count(), 0);
  ExpectBatches(/*finished=*/failed, /*failed=*/failed);
  EXPECT_EQ(
      engine_.Metric("attention_batch_failures_total", "code", "INTERNAL"),
      failed);
}

TEST_F(CudaDeviceTest, InvalidSlotCount) {
  const auto device =
      CreateCudaDevice({.slot_count = 1}, &cuda(), &engine_.host_pool(),
                       engine_.device_pool(), &engine_.metrics());
  EXPECT_EQ(device.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(device.status().message()),
              AllOf(HasSubstr("slot_count"), HasSubstr("2"), HasSubstr("1")));
}

TEST_F(CudaDeviceTest, ErrorsAtCreationAreReported) {
  const auto device =
      CreateCudaDevice({.ordinal = 5}, &cuda(), &engine_.host_pool(),
                       engine_.device_pool(), &engine_.metrics());
  EXPECT_EQ(device.status().code(), absl::StatusCode::kInternal);
}

TEST_F(CudaDeviceTest, FullGpuSplitsTheBatch) {
  // Less than the budget: another process uses the GPU too.
  cuda().LimitDeviceMemory(100 << 10);
  Requests requests =
      Run(8, {.config = kConfig, .lengths = {{1, 1000}}});  // 64 KB each
  ExpectRight(requests);
  EXPECT_EQ(cuda().launches(), 8);
  EXPECT_TRUE(device().health().ok());
  requests.clear();
  ExpectBatches(/*finished=*/1, /*failed=*/0);
}

TEST_F(CudaDeviceTest, FullGpuFailsOnlyWhatNeverFits) {
  cuda().LimitDeviceMemory(16 << 10);
  Requests requests;
  for (int64_t keys : {10, 1000, 20}) {
    requests.push_back(std::make_unique<TestRequest>(
        WorkSpec{.config = kConfig, .lengths = {{1, keys}}}));
  }
  RunAndWait(device(), MakeBatch(requests));
  EXPECT_TRUE(requests[0]->AnsweredRight());
  EXPECT_TRUE(requests[2]->AnsweredRight());
  const absl::Status status = requests[1]->Wait().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(status), error_reason::kOutOfMemory);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("device"), HasSubstr("the fake GPU is full")));
}

TEST_F(CudaDeviceTest, ScratchThatDoesNotFitHalvesTheBatch) {
  cuda().LimitDeviceMemory(1 << 20);
  cuda().SetScratchPerSequence(300 << 10);  // three fit
  Requests requests = Run(8);
  ExpectRight(requests);
  EXPECT_EQ(cuda().launches(), 3) << "2, 3 and 3";
  EXPECT_EQ(requests[0]->Wait()->batch_request_count, 2);
  requests.clear();
  ExpectBatches(/*finished=*/1, /*failed=*/0);
}

TEST_F(CudaDeviceTest, ScratchThatNeverFitsIsResourceExhausted) {
  cuda().SetScratchPerSequence(size_t{2} << 30);
  Requests requests = Run(3);
  ExpectFailed(requests, absl::StatusCode::kResourceExhausted,
               error_reason::kOutOfMemory);
  cuda().SetScratchPerSequence(0);
  Requests next = Run(3);
  ExpectRight(next);
  next.clear();
  ExpectBatches(/*finished=*/1, /*failed=*/1);
}

class StickyErrorTest : public CudaDeviceTest,
                        public testing::WithParamInterface<Call> {};
INSTANTIATE_TEST_SUITE_P(Calls, StickyErrorTest, testing::ValuesIn(kCalls));

TEST_P(StickyErrorTest, EndsTheDevice) {
  Requests before = Run(2);
  ExpectRight(before);
  before.clear();
  EXPECT_TRUE(device().health().ok());

  cuda().FailCall(GetParam(), 1, /*sticky=*/true);
  Requests hit = Run(3);
  ExpectFailed(hit, absl::StatusCode::kUnavailable,
               error_reason::kDeviceFailed);
  EXPECT_EQ(device().health().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(device().health().message()),
              AllOf(HasSubstr("cuda:0"), HasSubstr("injected CUDA error")));
  EXPECT_EQ(engine_.failure_count(), 1);

  for (int i = 0; i < 3; ++i) {
    Requests after = Run(2);
    ExpectFailed(after, absl::StatusCode::kUnavailable,
                 error_reason::kDeviceFailed);
  }
  EXPECT_EQ(engine_.failure_count(), 1) << "told once";
  ExpectBatches(/*finished=*/1, /*failed=*/4);
  EXPECT_EQ(
      engine_.Metric("attention_batch_failures_total", "code", "UNAVAILABLE"),
      4);
}

TEST_P(StickyErrorTest, ReachesBatchesInFlightOnEverySlot) {
  cuda().FailCall(GetParam(), 4, /*sticky=*/true);
  std::vector<Requests> batches;
  constexpr int kBatches = 12;
  absl::BlockingCounter free(kBatches);
  for (int i = 0; i < kBatches; ++i) {
    batches.emplace_back();
    batches.back().push_back(
        std::make_unique<TestRequest>(WorkSpec{.config = kConfig,
                                               .lengths = {{5, 6}},
                                               .padded_query_length = 7,
                                               .log_sum_exp = true}));
    device().Run(MakeBatch(batches.back()), [&free] { free.DecrementCount(); });
  }
  free.Wait();
  int failed = 0;
  for (Requests& requests : batches) {
    if (requests[0]->Wait().ok()) {
      EXPECT_TRUE(requests[0]->AnsweredRight());
    } else {
      ExpectFailed(requests, absl::StatusCode::kUnavailable,
                   error_reason::kDeviceFailed);
      ++failed;
    }
  }
  EXPECT_GT(failed, 0);
  EXPECT_EQ(engine_.failure_count(), 1);
  batches.clear();
  ExpectBatches(/*finished=*/kBatches - failed, /*failed=*/failed);
}

TEST_F(CudaDeviceTest, AllocationOnADeadGpuIsNotALackOfMemory) {
  cuda().FailCall(Call::kSynchronize, 1, /*sticky=*/true);
  Requests first = Run(1);
  ExpectFailed(first, absl::StatusCode::kUnavailable,
               error_reason::kDeviceFailed);
  // A second device on the same GPU learns of it when it allocates.
  MemoryPool pool({.name = "device", .budget_bytes = 1 << 30},
                  std::make_unique<DeviceAllocator>(&cuda(), 0));
  auto other = CreateCudaDevice({}, &cuda(), &engine_.host_pool(), &pool,
                                &engine_.metrics());
  ASSERT_TRUE(other.ok()) << other.status();
  Requests requests;
  requests.push_back(std::make_unique<TestRequest>(
      WorkSpec{.config = kConfig, .lengths = {{500, 500}}}));
  RunAndWait(**other, MakeBatch(requests));
  ExpectFailed(requests, absl::StatusCode::kUnavailable,
               error_reason::kDeviceFailed);
  EXPECT_FALSE((*other)->health().ok());
}

}  // namespace
}  // namespace attention::test
