#include "server/engine/cpu/cpu_device.h"

#include <chrono>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "kernels/cpu/attention_cpu.h"
#include "kernels/cpu/paged.h"
#include "kernels/cpu/thread_pool.h"
#include "server/engine/batch_binding.h"
#include "server/engine/batch_runner.h"
#include "server/engine/host_properties.h"
#include "server/engine/kv_batch.h"
#include "server/engine/kv_cache.h"
#include "server/engine/paged_binding.h"
#include "server/engine/slot_threads.h"

namespace attention {
namespace {

constexpr int kSlotCount = 2;
constexpr size_t kTensorAlignment = 256;  // as the pool's blocks

using SteadyClock = std::chrono::steady_clock;

absl::Duration Since(SteadyClock::time_point start) {
  return absl::FromChrono(SteadyClock::now() - start);
}

size_t AlignUp(size_t bytes) {
  return (bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
}

void ClearResult(const WorkResult& result) {
  for (const Block* block : {&result.output, &result.weights}) {
    if (block->size() > 0) std::memset(block->data(), 0, block->size());
  }
  FillEmptyLogSumExp(result.log_sum_exp.data(), result.log_sum_exp.size());
}

absl::Status CopyPages(absl::Span<const PageMove> moves) {
  for (const PageMove& move : moves) {
    std::memcpy(move.to, move.from, move.bytes);
  }
  return absl::OkStatus();
}

// The kernels and the threads they run on, for one batch at a time.
class Processors {
 public:
  explicit Processors(int thread_count) : threads_(thread_count) {}

  // Time spent computing, without the wait for a turn.
  absl::StatusOr<absl::Duration> Compute(const AttentionParams& params)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const SteadyClock::time_point start = SteadyClock::now();
    absl::Status status = cpu::ComputeAttention(params, threads_);
    if (!status.ok()) return status;
    return Since(start);
  }

  // As above for a resident batch, whose launches are made by `next`, until it
  // says that there is no more.
  absl::StatusOr<absl::Duration> ComputePaged(
      KvBatch& kv_batch, absl::FunctionRef<bool(PagedParams&)> next)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    // Without the lock: the batch before may still need it.
    kv_batch.AwaitTurn();
    absl::MutexLock lock(&mutex_);
    absl::Duration duration;
    for (bool has_more = true; has_more;) {
      PagedParams params;
      has_more = next(params);
      // Who comes next finds the lock taken.
      if (!has_more) kv_batch.Ordered();
      const SteadyClock::time_point start = SteadyClock::now();
      absl::Status status = cpu::ComputePaged(params, threads_);
      duration += Since(start);
      if (status.ok()) continue;
      kv_batch.Fail();
      return status;
    }
    return duration;
  }

 private:
  absl::Mutex mutex_;
  cpu::ThreadPool threads_ ABSL_GUARDED_BY(mutex_);
};

class CpuExecutor : public BatchExecutor {
 public:
  CpuExecutor(MemoryPool& pool, Processors& processors)
      : pool_(pool), processors_(processors) {}

  absl::Status Prepare(PreparedWork& prepared) override {
    AttentionWork& work = *prepared.work;
    size_t staging_bytes = 0;
    for (const Payload* payload : {&work.query, &work.key, &work.value}) {
      if (NeedsGather(work, *payload)) {
        staging_bytes += AlignUp(payload->size_bytes());
      }
    }
    absl::StatusOr<Block> staging = pool_.Allocate(staging_bytes);
    if (!staging.ok()) return staging.status();
    absl::StatusOr<WorkResult> result = AllocateResult(work, pool_);
    if (!result.ok()) return result.status();
    prepared.result = *std::move(result);
    prepared.staging = *std::move(staging);
    SetAddresses(prepared);
    return absl::OkStatus();
  }

  absl::Status Reserve(const HeadConfig&, absl::Span<PreparedWork>) override {
    return absl::OkStatus();
  }

  absl::StatusOr<PassReport> Compute(const HeadConfig& config,
                                     absl::Span<PreparedWork> works,
                                     KvBatch* kv_batch) override {
    PassReport report;
    const SteadyClock::time_point start = SteadyClock::now();
    for (PreparedWork& prepared : works) {
      report.copied_in_bytes += GatherInputs(prepared);
      if (prepared.work->has_padding) ClearResult(prepared.result);
    }
    report.copy_in = Since(start);
    absl::StatusOr<absl::Duration> compute =
        kv_batch == nullptr ? ComputeStateless(config, works)
                            : ComputeResident(works, *kv_batch, report);
    for (PreparedWork& prepared : works) prepared.work->payload_owner.reset();
    if (!compute.ok()) return compute.status();
    report.compute = *compute;
    return report;
  }

 private:
  absl::StatusOr<absl::Duration> ComputeStateless(
      const HeadConfig& config, absl::Span<const PreparedWork> works) {
    BindSequences(works, sequences_);
    return processors_.Compute(
        {.config = config,
         .sequences = sequences_.data(),
         .sequence_count = static_cast<int64_t>(sequences_.size())});
  }

  absl::StatusOr<absl::Duration> ComputeResident(absl::Span<PreparedWork> works,
                                                 KvBatch& kv_batch,
                                                 PassReport& report) {
    paged_binding_.Start(works);
    return processors_.ComputePaged(kv_batch, [&](PagedParams& params) {
      params = paged_binding_.BeginLaunch(kv_batch);
      kv_batch.Move(CopyPages).IgnoreError();  // it cannot fail
      for (const PreparedWork* prepared : paged_binding_.to_clear()) {
        ClearResult(prepared->result);
      }
      paged_binding_.AddCost(report);
      return paged_binding_.has_more();
    });
  }

  static bool NeedsGather(const AttentionWork& work, const Payload& payload) {
    return payload.size_bytes() > 0 &&
           InPlace(payload, ElementBytes(work.config.data_type)) == nullptr;
  }

  static void SetAddresses(PreparedWork& prepared) {
    const AttentionWork& work = *prepared.work;
    char* next = static_cast<char*>(prepared.staging.data());
    auto address = [&](const Payload& payload) -> const void* {
      if (payload.size_bytes() == 0) return nullptr;
      if (!NeedsGather(work, payload)) return payload.fragments.front().data();
      return std::exchange(next, next + AlignUp(payload.size_bytes()));
    };
    prepared.addresses = {
        .query = address(work.query),
        .key = address(work.key),
        .value = address(work.value),
        .output = prepared.result.output.data(),
        .log_sum_exp = static_cast<float*>(prepared.result.log_sum_exp.data()),
        .weights = prepared.result.weights.data()};
  }

  // Returns the bytes copied.
  static size_t GatherInputs(PreparedWork& prepared) {
    AttentionWork& work = *prepared.work;
    const std::pair<const Payload*, const void*> inputs[] = {
        {&work.query, prepared.addresses.query},
        {&work.key, prepared.addresses.key},
        {&work.value, prepared.addresses.value}};
    size_t copied = 0;
    bool all_copied = true;
    for (auto [payload, address] : inputs) {
      if (NeedsGather(work, *payload)) {
        prepared.status.Update(Gather(*payload, const_cast<void*>(address)));
        copied += payload->size_bytes();
      } else {
        all_copied &= payload->size_bytes() == 0;
      }
    }
    if (all_copied) work.payload_owner.reset();
    return copied;
  }

  MemoryPool& pool_;
  Processors& processors_;
  // Memory for the sequences of a batch.
  std::vector<Sequence> sequences_;
  PagedBinding paged_binding_;
};

class CpuDevice : public Device {
 public:
  CpuDevice(DeviceDescription description, MemoryPool& pool, Metrics& metrics)
      : description_(std::move(description)),
        pool_(pool),
        processors_(description_.processor_count),
        executors_(kSlotCount, CpuExecutor(pool, processors_)),
        slots_(kSlotCount,
               [this, &metrics](int slot, std::unique_ptr<Batch> batch,
                                absl::FunctionRef<void()> free_slot) {
                 RunBatch(std::move(batch), executors_[slot], description_.name,
                          kv_cache_, metrics, free_slot);
               }) {}

  const DeviceDescription& description() const override { return description_; }
  int slot_count() const override { return kSlotCount; }
  absl::StatusOr<std::unique_ptr<InputUpload>> ReserveInputs(
      const InputSizes& sizes) override {
    return ReserveHostInputs(sizes, pool_);
  }
  absl::Status ReserveResults(AttentionWork& work) override {
    return ReserveHostResults(work, pool_);
  }
  MemoryPool* page_pool() override { return &pool_; }
  std::unique_ptr<Allocator> MakeSpillAllocator() override {
    return MakeHostAllocator();
  }
  void SetKvCache(KvCache* cache) override { kv_cache_ = cache; }
  void Run(std::unique_ptr<Batch> batch,
           absl::AnyInvocable<void()> slot_free) override {
    slots_.Run(std::move(batch), std::move(slot_free));
  }
  absl::Status health() const override { return absl::OkStatus(); }

 private:
  const DeviceDescription description_;
  MemoryPool& pool_;
  Processors processors_;
  std::vector<CpuExecutor> executors_;
  KvCache* kv_cache_ = nullptr;
  SlotThreads slots_;  // last: its threads use all of the above
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> CreateCpuDevice(
    const CpuDeviceOptions& options, MemoryPool* host_pool, Metrics* metrics) {
  if (options.thread_count < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "thread_count must be at least 0; got ", options.thread_count));
  }
  DeviceDescription description = {
      .name = options.name,
      .backend = "cpu",
      .model = cpu::InstructionSet(),
      .memory_bytes = HostMemoryBytes(),
      .memory_budget_bytes = host_pool->usage().budget_bytes,
      .processor_count = options.thread_count > 0 ? options.thread_count
                                                  : UsableProcessorCount()};
  return std::make_unique<CpuDevice>(std::move(description), *host_pool,
                                     *metrics);
}

}  // namespace attention
