#include "server/bench/null_device.h"

#include <chrono>
#include <utility>
#include <vector>

#include "server/engine/batch_binding.h"
#include "server/engine/batch_runner.h"
#include "server/engine/slot_threads.h"

namespace attention {
namespace {

constexpr int kSlotCount = 2;
constexpr size_t kAlignment = 256;

size_t AlignUp(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Whether the bytes lie in memory of the device already. Those of a message come
// in slices of at most some 64 KiB.
bool IsUpload(const Payload& payload) {
  constexpr size_t kMaxSliceBytes = size_t{128} << 10;
  return payload.fragments.size() == 1 &&
         payload.fragments.front().size() > kMaxSliceBytes;
}

class GatherOnly : public BatchExecutor {
 public:
  explicit GatherOnly(MemoryPool& pool) : pool_(pool) {}

  absl::Status Prepare(PreparedWork& prepared) override {
    AttentionWork& work = *prepared.work;
    size_t staging_bytes = 0;
    for (const Payload* payload : {&work.query, &work.key, &work.value}) {
      if (!IsUpload(*payload)) staging_bytes += AlignUp(payload->size_bytes());
    }
    absl::StatusOr<Block> staging = pool_.Allocate(staging_bytes);
    if (!staging.ok()) return staging.status();
    absl::StatusOr<WorkResult> result = AllocateResult(work, pool_);
    if (!result.ok()) return result.status();
    prepared.result = *std::move(result);
    prepared.staging = *std::move(staging);
    char* next = static_cast<char*>(prepared.staging.data());
    const auto address = [&](const Payload& payload) -> const void* {
      if (IsUpload(payload)) return payload.fragments.front().data();
      return std::exchange(next, next + AlignUp(payload.size_bytes()));
    };
    prepared.addresses = {
        .query = address(work.query),
        .key = address(work.key),
        .value = address(work.value),
        .output = prepared.result.output.data(),
        .log_sum_exp = static_cast<float*>(prepared.result.log_sum_exp.data()),
        .weights = prepared.result.weights.data()};
    return absl::OkStatus();
  }

  absl::Status Reserve(const HeadConfig&, absl::Span<PreparedWork>) override {
    return absl::OkStatus();
  }

  absl::StatusOr<PassReport> Compute(const HeadConfig&,
                                     absl::Span<PreparedWork> works,
                                     KvBatch*) override {
    PassReport report;
    const auto start = std::chrono::steady_clock::now();
    for (PreparedWork& prepared : works) {
      AttentionWork& work = *prepared.work;
      const std::pair<const Payload*, const void*> inputs[] = {
          {&work.query, prepared.addresses.query},
          {&work.key, prepared.addresses.key},
          {&work.value, prepared.addresses.value}};
      for (auto [payload, address] : inputs) {
        if (IsUpload(*payload)) continue;
        prepared.status.Update(Gather(*payload, const_cast<void*>(address)));
        report.copied_in_bytes += payload->size_bytes();
      }
      work.payload_owner.reset();
    }
    report.copy_in = absl::FromChrono(std::chrono::steady_clock::now() - start);
    return report;
  }

 private:
  MemoryPool& pool_;
};

class NullDevice : public Device {
 public:
  NullDevice(MemoryPool& pool, Metrics& metrics)
      : description_{.name = "null:0",
                     .backend = "cpu",
                     .model = "computes nothing",
                     .memory_bytes = pool.usage().budget_bytes,
                     .memory_budget_bytes = pool.usage().budget_bytes,
                     .processor_count = kSlotCount},
        pool_(pool),
        executor_(pool),
        slots_(kSlotCount,
               [this, &metrics](int, std::unique_ptr<Batch> batch,
                                absl::FunctionRef<void()> free_slot) {
                 RunBatch(std::move(batch), executor_, description_.name,
                          /*kv_cache=*/nullptr, metrics, free_slot);
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
  void Run(std::unique_ptr<Batch> batch,
           absl::AnyInvocable<void()> slot_free) override {
    slots_.Run(std::move(batch), std::move(slot_free));
  }
  absl::Status health() const override { return absl::OkStatus(); }

 private:
  const DeviceDescription description_;
  MemoryPool& pool_;
  GatherOnly executor_;  // without state of its own: both slots use it
  SlotThreads slots_;    // last: its threads use all of the above
};

}  // namespace

std::unique_ptr<Device> MakeNullDevice(MemoryPool* pool, Metrics* metrics) {
  return std::make_unique<NullDevice>(*pool, *metrics);
}

}  // namespace attention
