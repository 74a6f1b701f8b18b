// Runs tests of the engine on every backend.
#ifndef ATTENTION_TESTS_SERVER_ENGINE_ENGINE_FIXTURE_H_
#define ATTENTION_TESTS_SERVER_ENGINE_ENGINE_FIXTURE_H_

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/engine/copy_threads.h"
#include "server/engine/device.h"
#include "server/memory/memory_pool.h"
#include "server/metrics/metrics.h"
#include "tests/server/engine/engine_test_support.h"
#include "tests/server/engine/fake_cuda_runtime.h"

namespace attention::test {

enum class EngineBackend { kCpu, kFakeCuda, kCuda };

struct EngineBudgets {
  size_t host_bytes = size_t{1} << 30;
  size_t device_bytes = size_t{1} << 30;
};

// A device with its pools and metrics.
class TestEngine {
 public:
  // Null `device()` when the backend is missing, with the reason in
  // `missing()`.
  explicit TestEngine(EngineBackend backend, EngineBudgets budgets = {});
  ~TestEngine();

  Device* device() { return device_.get(); }
  const std::string& missing() const { return missing_; }
  Metrics& metrics() { return metrics_; }
  MemoryPool& host_pool() { return *host_pool_; }
  // Null on the CPU.
  MemoryPool* device_pool() { return device_pool_.get(); }
  // Null on other backends.
  FakeCudaRuntime* fake_cuda() { return fake_cuda_.get(); }
  // Failures that the device has reported.
  int failure_count() const { return failure_count_; }

  // Waits for batches in flight, as the destructor.
  void DestroyDevice() { device_.reset(); }

  // Sum over all series of a metric, or of those with label = value.
  double Metric(const std::string& name, const std::string& label = "",
                const std::string& value = "") const;
  // Samples of a histogram.
  uint64_t SampleCount(const std::string& name) const;

 private:
  std::atomic<int> failure_count_{0};
  Metrics metrics_;
  std::unique_ptr<FakeCudaRuntime> fake_cuda_;
  std::unique_ptr<MemoryPool> host_pool_;
  std::unique_ptr<MemoryPool> device_pool_;
  CopyThreads copy_threads_{2};
  std::unique_ptr<Device> device_;
  std::string missing_;
};

inline constexpr HeadConfig kSmallConfig = {.data_type = DataType::kFloat32,
                                            .head_dim_qk = 16,
                                            .head_dim_v = 16,
                                            .query_head_count = 2,
                                            .kv_head_count = 2};
inline constexpr HeadConfig kGroupedConfig = {
    .data_type = DataType::kBFloat16,
    .head_dim_qk = 40,
    .head_dim_v = 24,
    .query_head_count = 6,
    .kv_head_count = 2,
    .mask = MaskKind::kCausalBottomRight};

using Requests = std::vector<std::unique_ptr<TestRequest>>;

// Each with data of its own.
Requests MakeRequests(std::vector<WorkSpec> specs);

// Needs about `bytes` of staging memory and next to none for its answer.
WorkSpec LargeInput(size_t bytes);

// A test that runs on every backend, and is skipped where there is no GPU.
class EngineTest : public testing::TestWithParam<EngineBackend> {
 protected:
  void SetUp() override { Start({}); }
  // Replaces the engine.
  void Start(EngineBudgets budgets);

  Device& device() { return *engine_->device(); }
  TestEngine& engine() const { return *engine_; }

  // One batch of these; all must be answered right.
  void ExpectRight(std::vector<WorkSpec> specs);

 private:
  std::unique_ptr<TestEngine> engine_;
};

std::string EngineBackendName(
    const testing::TestParamInfo<EngineBackend>& info);

#define INSTANTIATE_FOR_ENGINES(suite)                               \
  INSTANTIATE_TEST_SUITE_P(                                          \
      Engines, suite,                                                \
      ::testing::Values(::attention::test::EngineBackend::kCpu,      \
                        ::attention::test::EngineBackend::kFakeCuda, \
                        ::attention::test::EngineBackend::kCuda),    \
      ::attention::test::EngineBackendName)

}  // namespace attention::test

#endif  // ATTENTION_TESTS_SERVER_ENGINE_ENGINE_FIXTURE_H_
