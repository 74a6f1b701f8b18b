#include "server/engine/device_factory.h"

#include <prometheus/registry.h>

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/engine/host_properties.h"
#include "tests/server/engine/engine_fixture.h"

namespace attention::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class DeviceFactoryTest : public testing::Test {
 protected:
  std::vector<std::string> Names(const DeviceSet& set) {
    std::vector<std::string> names;
    for (Device* device : set.devices()) {
      names.push_back(device->description().name);
    }
    return names;
  }

  // Budgets that metrics show, of pools called `name`.
  int PoolCount(const std::string& name) {
    int count = 0;
    for (const auto& family : metrics_.registry()->Collect()) {
      if (family.name != "attention_memory_bytes") continue;
      for (const auto& metric : family.metric) {
        bool named = false, budget = false;
        for (const auto& label : metric.label) {
          named |= label.name == "pool" && label.value == name;
          budget |= label.name == "state" && label.value == "budget";
        }
        count += named && budget;
      }
    }
    return count;
  }

  Metrics metrics_{{.version = "0", .backend = "test"}};
};

TEST_F(DeviceFactoryTest, ParsesBackends) {
  EXPECT_EQ(*ParseBackend("auto"), Backend::kAuto);
  EXPECT_EQ(*ParseBackend("cuda"), Backend::kCuda);
  EXPECT_EQ(*ParseBackend("cpu"), Backend::kCpu);
  for (const char* name : {"", "CPU", "gpu"}) {
    const absl::Status status = ParseBackend(name).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("auto, cuda, cpu"), HasSubstr(name)));
  }
}

TEST_F(DeviceFactoryTest, AutoTakesEveryGpu) {
  FakeCudaRuntime cuda(/*device_count=*/3);
  auto set = CreateDevices({.backend = Backend::kAuto}, &cuda, &metrics_);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ((*set)->backend(), "cuda");
  EXPECT_THAT(Names(**set), ElementsAre("cuda:0", "cuda:1", "cuda:2"));
  EXPECT_EQ(PoolCount("device"), 3);
  EXPECT_EQ(PoolCount("pinned"), 1) << "shared by the devices";
}

TEST_F(DeviceFactoryTest, AutoFallsBackToTheProcessors) {
  FakeCudaRuntime none(/*device_count=*/0);
  auto set = CreateDevices({.backend = Backend::kAuto}, &none, &metrics_);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ((*set)->backend(), "cpu");
  EXPECT_THAT(Names(**set), ElementsAre("cpu:0"));
}

TEST_F(DeviceFactoryTest, CpuIsTakenInSpiteOfAGpu) {
  FakeCudaRuntime cuda;
  auto set = CreateDevices({.backend = Backend::kCpu, .cpu_threads = 3}, &cuda,
                           &metrics_);
  ASSERT_TRUE(set.ok()) << set.status();
  const DeviceDescription& description =
      (*set)->devices().front()->description();
  EXPECT_EQ(description.backend, "cpu");
  EXPECT_EQ(description.processor_count, 3);
  EXPECT_EQ(description.memory_bytes, HostMemoryBytes());
  EXPECT_FALSE(description.model.empty());
  EXPECT_EQ(description.compute_capability, "");
  EXPECT_EQ(PoolCount("host"), 1);
}

TEST_F(DeviceFactoryTest, ZeroThreadsMeansAll) {
  auto set = CreateDevices({.backend = Backend::kCpu}, &metrics_);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ((*set)->devices().front()->description().processor_count,
            UsableProcessorCount());
}

TEST_F(DeviceFactoryTest, CudaWithoutGpuIsAFailedPrecondition) {
  FakeCudaRuntime none(/*device_count=*/0);
  const auto set = CreateDevices({.backend = Backend::kCuda}, &none, &metrics_);
  EXPECT_EQ(set.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(set.status().message()),
              AllOf(HasSubstr("backend cuda"), HasSubstr("no GPU")));
}

TEST_F(DeviceFactoryTest, CudaInABuildWithoutItIsAFailedPrecondition) {
  const auto set = CreateDevices(
      {.backend = Backend::kCuda},
      absl::FailedPreconditionError("this build has no CUDA backend"),
      &metrics_);
  EXPECT_EQ(set.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(set.status().message()),
              HasSubstr("this build has no CUDA backend"));
}

TEST_F(DeviceFactoryTest, BudgetsDefaultToPartsOfTheMemory) {
  FakeCudaRuntime cuda;  // of 1 GiB
  auto set = CreateDevices({}, &cuda, &metrics_);
  ASSERT_TRUE(set.ok()) << set.status();
  const DeviceDescription& description =
      (*set)->devices().front()->description();
  EXPECT_EQ(description.memory_budget_bytes, (size_t{1} << 30) / 5 * 4);

  auto cpu = CreateDevices({.backend = Backend::kCpu}, &metrics_);
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  EXPECT_EQ((*cpu)->devices().front()->description().memory_budget_bytes,
            HostMemoryBytes() / 2);
}

TEST_F(DeviceFactoryTest, BudgetsAreTakenFromTheOptions) {
  FakeCudaRuntime cuda;
  const DeviceOptions options = {.host_memory_budget_bytes = 123 << 20,
                                 .device_memory_budget_bytes = 45 << 20};
  auto set = CreateDevices(options, &cuda, &metrics_);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ((*set)->devices().front()->description().memory_budget_bytes,
            size_t{45} << 20);
}

TEST_F(DeviceFactoryTest, EveryGpuIsWarmedUpUnlessToldOtherwise) {
  FakeCudaRuntime cuda(/*device_count=*/2);
  {
    auto set = CreateDevices({.warm_up = false}, &cuda, &metrics_);
    ASSERT_TRUE(set.ok()) << set.status();
    EXPECT_EQ(cuda.launches(), 0);
  }
  auto set = CreateDevices({.copy_threads = 1}, &cuda, &metrics_);
  ASSERT_TRUE(set.ok()) << set.status();
  int slots = 0;
  for (Device* device : (*set)->devices()) slots += device->slot_count();
  EXPECT_EQ(cuda.launches(), 16 * slots);
}

TEST_F(DeviceFactoryTest, NegativeThreadCountIsInvalid) {
  const auto set =
      CreateDevices({.backend = Backend::kCpu, .cpu_threads = -1}, &metrics_);
  EXPECT_EQ(set.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(set.status().message()),
              AllOf(HasSubstr("thread_count"), HasSubstr("-1")));
}

TEST_F(DeviceFactoryTest, PoolsLeaveTheMetricsWithTheirSet) {
  FakeCudaRuntime cuda(/*device_count=*/2);
  auto set = CreateDevices({}, &cuda, &metrics_);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(PoolCount("device"), 2);
  set->reset();
  EXPECT_EQ(PoolCount("device"), 0);
  EXPECT_EQ(PoolCount("pinned"), 0);
}

TEST_F(DeviceFactoryTest, FailureOfAnyDeviceIsReported) {
  FakeCudaRuntime cuda(/*device_count=*/2);
  std::vector<absl::Status> failures;
  auto set = CreateDevices(
      {.on_failure =
           [&](const absl::Status& error) { failures.push_back(error); }},
      &cuda, &metrics_);
  ASSERT_TRUE(set.ok()) << set.status();
  cuda.FailCall(FakeCudaRuntime::Call::kLaunch, 1, /*sticky=*/true);
  std::vector<std::unique_ptr<TestRequest>> requests;
  requests.push_back(
      std::make_unique<TestRequest>(WorkSpec{.config = {.head_dim_qk = 4,
                                                        .head_dim_v = 4,
                                                        .query_head_count = 1,
                                                        .kv_head_count = 1},
                                             .lengths = {{2, 2}}}));
  RunAndWait(*(*set)->devices()[1], MakeBatch(requests));
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_THAT(std::string(failures[0].message()), HasSubstr("cuda:1"));
  EXPECT_TRUE((*set)->devices()[0]->health().ok());
  EXPECT_FALSE((*set)->devices()[1]->health().ok());
}

// An idle server keeps little of the memory that a large request needed.
TEST_F(DeviceFactoryTest, IdleCpuServerGivesLargeBlocksBack) {
  auto set = CreateDevices({.backend = Backend::kCpu}, &metrics_);
  ASSERT_TRUE(set.ok()) << set.status();
  {
    std::vector<std::unique_ptr<TestRequest>> requests;
    requests.push_back(std::make_unique<TestRequest>(
        WorkSpec{.config = {.head_dim_qk = 1,
                            .head_dim_v = 256,
                            .query_head_count = 1,
                            .kv_head_count = 1},
                 .lengths = {{1, 1}},
                 .padded_query_length = 100000}));  // an answer of 102 MB
    RunAndWait(*(*set)->devices().front(), MakeBatch(requests));
    EXPECT_TRUE(requests[0]->Wait().ok()) << requests[0]->Wait().status();
  }
  double cached = 0;
  for (const auto& family : metrics_.registry()->Collect()) {
    if (family.name != "attention_memory_bytes") continue;
    for (const auto& metric : family.metric) {
      for (const auto& label : metric.label) {
        if (label.value == "cached") cached += metric.gauge.value;
      }
    }
  }
  EXPECT_LT(cached, 80 << 20);
}

}  // namespace
}  // namespace attention::test
