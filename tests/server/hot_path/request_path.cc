#include "tests/server/hot_path/request_path.h"

#include <gtest/gtest.h>

#include <utility>

#include "server/engine/cpu/cpu_device.h"
#include "server/engine/cuda/cuda_allocators.h"
#include "server/engine/cuda/cuda_device.h"
#include "server/rpc/request_decoder.h"
#include "server/rpc/response_encoder.h"
#include "tests/server/hot_path/copying_runtime.h"

namespace attention::test {
namespace {

constexpr size_t kSliceBytes = size_t{64} << 10;
constexpr size_t kBudgetBytes = size_t{1} << 30;

}  // namespace

RequestPath::RequestPath(PathBackend backend, std::string message,
                         absl::Duration max_inline_time)
    : message_(std::move(message)) {
  for (size_t at = 0; at < message_.size(); at += kSliceBytes) {
    fragments_.push_back(absl::string_view(message_).substr(at, kSliceBytes));
  }
  absl::StatusOr<std::unique_ptr<Device>> device;
  if (backend == PathBackend::kCpu) {
    host_pool_ = std::make_unique<MemoryPool>(
        MemoryPool::Options{.name = "host", .budget_bytes = kBudgetBytes},
        MakeHostAllocator());
    device = CreateCpuDevice({.thread_count = 2}, host_pool_.get(), &metrics_);
  } else {
    runtime_ = std::make_unique<CopyingRuntime>();
    host_pool_ = std::make_unique<MemoryPool>(
        MemoryPool::Options{.name = "pinned", .budget_bytes = kBudgetBytes},
        std::make_unique<PinnedAllocator>(runtime_.get()));
    device_pool_ = std::make_unique<MemoryPool>(
        MemoryPool::Options{.name = "device", .budget_bytes = kBudgetBytes},
        std::make_unique<DeviceAllocator>(runtime_.get(), 0));
    device = CreateCudaDevice({.copy_threads = &copy_threads_}, runtime_.get(),
                              host_pool_.get(), device_pool_.get(), &metrics_);
  }
  EXPECT_TRUE(device.ok()) << device.status();
  device_ = *std::move(device);
  auto scheduler =
      Scheduler::Create({.max_inline_time = max_inline_time},
                        {device_.get()}, &metrics_, &Clock::Real());
  EXPECT_TRUE(scheduler.ok()) << scheduler.status();
  scheduler_ = *std::move(scheduler);
}

RequestPath::~RequestPath() {
  scheduler_.reset();
  device_.reset();
}

// As ComputeCall does.
void RequestPath::Start() {
  MessageArena arena;
  absl::StatusOr<ScannedRequest> scanned = ScanRequest(fragments_, arena);
  ASSERT_TRUE(scanned.ok()) << scanned.status();
  absl::StatusOr<DecodedRequest> decoded =
      DecodeRequest(*std::move(scanned), {});
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  decoded->work->deadline = absl::Now() + absl::Minutes(1);
  decoded->work->done = [this, plan = std::make_unique<ResponsePlan>(std::move(
                                   decoded->plan))](
                            absl::StatusOr<WorkResult> result) {
    size_t bytes = 0;
    if (result.ok()) {
      bytes = EncodeResponse(*plan, *std::move(result), nullptr).Length();
    }
    absl::MutexLock lock(&mutex_);
    ++answered_;
    answer_bytes_ = bytes;
  };
  const auto id = scheduler_->Enqueue(decoded->work);
  ASSERT_TRUE(id.ok()) << id.status();
}

void RequestPath::WaitForAnswers(int count) {
  const auto all_there = [this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                             mutex_) { return answered_ == count; };
  absl::MutexLock lock(&mutex_, absl::Condition(&all_there));
  answered_ = 0;
}

size_t RequestPath::RunOneByOne(int count) {
  for (int i = 0; i < count; ++i) {
    Start();
    WaitForAnswers(1);
  }
  absl::MutexLock lock(&mutex_);
  return answer_bytes_;
}

size_t RequestPath::RunAtOnce(int count) {
  for (int i = 0; i < count; ++i) Start();
  WaitForAnswers(count);
  absl::MutexLock lock(&mutex_);
  return answer_bytes_;
}

}  // namespace attention::test
