#include "server/engine/cuda/cuda_device.h"

#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "server/engine/cuda/batch_memory.h"
#include "server/engine/cuda/cuda_allocators.h"
#include "server/engine/cuda/cuda_slot.h"
#include "server/engine/cuda/device_upload.h"
#include "server/engine/cuda/warm_up.h"
#include "server/engine/error_reason.h"
#include "server/engine/slot_threads.h"

namespace attention {
namespace {

class CudaDevice : public Device {
 public:
  CudaDevice(DeviceDescription description, const CudaDeviceOptions& options,
             CudaRuntime& runtime, MemoryPool& pinned_pool,
             MemoryPool& device_pool)
      : description_(std::move(description)),
        slot_count_(options.slot_count),
        warm_up_(options.warm_up),
        on_failure_(options.on_failure),
        shared_{.runtime = runtime,
                .device = options.ordinal,
                .pinned_pool = pinned_pool,
                .device_pool = device_pool,
                .copy_threads = options.copy_threads != nullptr
                                    ? *options.copy_threads
                                    : no_copy_threads_,
                .resident_computed = resident_computed_,
                .computing_slots = computing_slots_,
                .fail_device =
                    [this](const absl::Status& error) { return Fail(error); },
                .health = [this] { return health(); }} {}

  absl::Status Start(Metrics& metrics) {
    for (int i = 0; i < slot_count_; ++i) {
      absl::StatusOr<std::unique_ptr<CudaSlot>> slot =
          CudaSlot::Create(&shared_);
      if (!slot.ok()) return slot.status();
      slots_.push_back(*std::move(slot));
      if (!warm_up_) continue;
      if (absl::Status status = WarmUp(*slots_.back(), shared_.device_pool);
          !status.ok()) {
        return status;
      }
    }
    threads_.emplace(
        slot_count_, [this, &metrics](int slot, std::unique_ptr<Batch> batch,
                                      absl::FunctionRef<void()> free_slot) {
          RunBatch(std::move(batch), *slots_[slot], description_.name,
                   kv_cache_, metrics, free_slot, &shared_.copy_threads);
        });
    return absl::OkStatus();
  }

  const DeviceDescription& description() const override { return description_; }
  int slot_count() const override { return slot_count_; }
  absl::StatusOr<std::unique_ptr<InputUpload>> ReserveInputs(
      const InputSizes& sizes) override {
    return upload_lanes_.Reserve(sizes);
  }
  absl::Status ReserveResults(AttentionWork& work) override {
    // Before any allocation, which would otherwise set up the first GPU.
    absl::Status status = shared_.runtime.SetDevice(shared_.device);
    if (!status.ok()) return status;
    return ReserveResultMemory(work, shared_.pinned_pool, shared_.device_pool);
  }
  MemoryPool* page_pool() override { return &shared_.device_pool; }
  std::unique_ptr<Allocator> MakeSpillAllocator() override {
    return std::make_unique<PinnedAllocator>(&shared_.runtime);
  }
  void SetKvCache(KvCache* cache) override { kv_cache_ = cache; }
  void Run(std::unique_ptr<Batch> batch,
           absl::AnyInvocable<void()> slot_free) override {
    threads_->Run(std::move(batch), std::move(slot_free));
  }
  absl::Status health() const override {
    absl::MutexLock lock(&mutex_);
    return health_;
  }

 private:
  absl::Status Fail(const absl::Status& error) {
    const absl::Status failed = WithReason(
        absl::UnavailableError(absl::StrCat("device ", description_.name,
                                            " has failed: ", error.message())),
        error_reason::kDeviceFailed);
    {
      absl::MutexLock lock(&mutex_);
      if (!health_.ok()) return health_;  // another slot was first
      health_ = failed;
    }
    if (on_failure_) on_failure_(failed);
    return failed;
  }

  const DeviceDescription description_;
  const int slot_count_;
  const bool warm_up_;
  const std::function<void(const absl::Status&)> on_failure_;
  mutable absl::Mutex mutex_;
  absl::Status health_ ABSL_GUARDED_BY(mutex_);
  CopyThreads no_copy_threads_{0};
  CudaRuntime::Event resident_computed_ = nullptr;
  std::atomic<int> computing_slots_ = 0;
  KvCache* kv_cache_ = nullptr;
  const CudaSlot::Shared shared_;
  UploadLanes upload_lanes_{&shared_};
  std::vector<std::unique_ptr<CudaSlot>> slots_;
  std::optional<SlotThreads> threads_;  // last: they use all of the above
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(
    const CudaDeviceOptions& options, CudaRuntime* runtime,
    MemoryPool* pinned_pool, MemoryPool* device_pool, Metrics* metrics) {
  if (options.slot_count < 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "slot_count must be at least 2; got ", options.slot_count));
  }
  absl::StatusOr<CudaRuntime::Properties> properties =
      runtime->GetProperties(options.ordinal);
  if (!properties.ok()) return properties.status();
  auto device = std::make_unique<CudaDevice>(
      DeviceDescription{
          .name = absl::StrCat("cuda:", options.ordinal),
          .backend = "cuda",
          .model = properties->name,
          .compute_capability = properties->compute_capability,
          .uuid = properties->uuid,
          .memory_bytes = properties->memory_bytes,
          .memory_budget_bytes = device_pool->usage().budget_bytes,
          .processor_count = properties->multiprocessor_count},
      options, *runtime, *pinned_pool, *device_pool);
  if (absl::Status status = device->Start(*metrics); !status.ok()) {
    return status;
  }
  return device;
}

}  // namespace attention
