#include "tests/server/engine/engine_fixture.h"

#include <prometheus/registry.h>

#include <utility>

#include "server/engine/cpu/cpu_device.h"
#include "server/engine/cuda/cuda_allocators.h"
#include "server/engine/cuda/cuda_device.h"

namespace attention::test {

TestEngine::TestEngine(EngineBackend backend, EngineBudgets budgets)
    : metrics_({.version = "0", .backend = "test"}) {
  if (backend == EngineBackend::kCpu) {
    host_pool_ = std::make_unique<MemoryPool>(
        MemoryPool::Options{.name = "host", .budget_bytes = budgets.host_bytes},
        MakeHostAllocator());
    auto device =
        CreateCpuDevice({.thread_count = 3}, host_pool_.get(), &metrics_);
    if (device.ok()) device_ = *std::move(device);
    missing_ = device.status().ToString();
    return;
  }
  CudaRuntime* runtime = nullptr;
  if (backend == EngineBackend::kFakeCuda) {
    fake_cuda_ = std::make_unique<FakeCudaRuntime>();
    runtime = fake_cuda_.get();
  } else {
    absl::StatusOr<CudaRuntime*> system = SystemCudaRuntime();
    const absl::Status status =
        system.ok() ? (*system)->DeviceCount().status() : system.status();
    if (!status.ok()) {
      missing_ = status.ToString();
      return;
    }
    runtime = *system;
  }
  host_pool_ = std::make_unique<MemoryPool>(
      MemoryPool::Options{.name = "pinned", .budget_bytes = budgets.host_bytes},
      std::make_unique<PinnedAllocator>(runtime));
  device_pool_ = std::make_unique<MemoryPool>(
      MemoryPool::Options{.name = "device",
                          .budget_bytes = budgets.device_bytes},
      std::make_unique<DeviceAllocator>(runtime, 0));
  auto device = CreateCudaDevice(
      {.copy_threads = &copy_threads_,
       .on_failure = [this](const absl::Status&) { ++failure_count_; }},
      runtime, host_pool_.get(), device_pool_.get(), &metrics_);
  if (device.ok()) device_ = *std::move(device);
  missing_ = device.status().ToString();
}

TestEngine::~TestEngine() = default;

double TestEngine::Metric(const std::string& name, const std::string& label,
                          const std::string& value) const {
  double sum = 0;
  for (const prometheus::MetricFamily& family :
       metrics_.registry()->Collect()) {
    if (family.name != name) continue;
    for (const prometheus::ClientMetric& metric : family.metric) {
      bool matches = label.empty();
      for (const prometheus::ClientMetric::Label& l : metric.label) {
        matches |= l.name == label && l.value == value;
      }
      if (matches) sum += metric.counter.value + metric.gauge.value;
    }
  }
  return sum;
}

uint64_t TestEngine::SampleCount(const std::string& name) const {
  uint64_t count = 0;
  for (const prometheus::MetricFamily& family :
       metrics_.registry()->Collect()) {
    if (family.name != name) continue;
    for (const prometheus::ClientMetric& metric : family.metric) {
      count += metric.histogram.sample_count;
    }
  }
  return count;
}

Requests MakeRequests(std::vector<WorkSpec> specs) {
  Requests requests;
  for (WorkSpec& spec : specs) {
    spec.seed += requests.size();
    requests.push_back(std::make_unique<TestRequest>(std::move(spec)));
  }
  return requests;
}

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

void EngineTest::Start(EngineBudgets budgets) {
  engine_.reset();
  engine_ = std::make_unique<TestEngine>(GetParam(), budgets);
  if (engine_->device() != nullptr) return;
  if (GetParam() == EngineBackend::kCuda) {
    GTEST_SKIP() << "no CUDA device: " << engine_->missing();
  }
  FAIL() << engine_->missing();
}

void EngineTest::ExpectRight(std::vector<WorkSpec> specs) {
  Requests requests = MakeRequests(std::move(specs));
  RunAndWait(device(), MakeBatch(requests));
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_TRUE(requests[i]->AnsweredRight()) << "request " << i;
  }
}

std::string EngineBackendName(
    const testing::TestParamInfo<EngineBackend>& info) {
  switch (info.param) {
    case EngineBackend::kCpu:
      return "Cpu";
    case EngineBackend::kFakeCuda:
      return "FakeCuda";
    case EngineBackend::kCuda:
      return "Cuda";
  }
  return "unknown";
}

}  // namespace attention::test
