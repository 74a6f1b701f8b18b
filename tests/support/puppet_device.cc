#include "tests/support/puppet_device.h"

#include <gtest/gtest.h>

#include <utility>

#include "server/engine/batch_binding.h"

namespace attention {

PuppetDevice::PuppetDevice(std::string name, int slot_count,
                           size_t memory_bytes)
    : description_{.name = std::move(name),
                   .backend = "puppet",
                   .model = "puppet"},
      slot_count_(slot_count),
      pool_({.name = "puppet",
             .budget_bytes = memory_bytes,
             .max_cached_bytes = 0},
            MakeHostAllocator()) {}

PuppetDevice::~PuppetDevice() {
  while (Finish(absl::AbortedError("the puppet device is gone"))) {
  }
}

absl::StatusOr<std::unique_ptr<InputUpload>> PuppetDevice::ReserveInputs(
    const InputSizes& sizes) {
  return ReserveHostInputs(sizes, pool_);
}

absl::Status PuppetDevice::ReserveResults(AttentionWork& work) {
  return ReserveHostResults(work, pool_);
}

void PuppetDevice::Run(std::unique_ptr<Batch> batch,
                       absl::AnyInvocable<void()> slot_free) {
  Record record{batch->config,
                batch->flush_reason,
                batch->is_short,
                batch->start_time,
                {}};
  ASSERT_FALSE(batch->works.empty());
  const AttentionWork& first = *batch->works.front();
  record.required_device = first.required_device;
  record.kv_batch_number = batch->kv_batch_number;
  EXPECT_EQ(record.kv_batch_number.has_value(), first.is_resident());
  for (const auto& work : batch->works) {
    EXPECT_EQ(work->config, batch->config);
    EXPECT_EQ(work->required_device, record.required_device);
    EXPECT_EQ(work->paged_config(), first.paged_config());
    record.query_tokens.push_back(work->query_tokens());
  }
  absl::MutexLock lock(&mutex_);
  records_.push_back(std::move(record));
  in_flight_.push_back({std::move(batch), std::move(slot_free)});
  EXPECT_LE(in_flight_.size(), static_cast<size_t>(slot_count_));
  changed_.SignalAll();
}

absl::Status PuppetDevice::health() const {
  absl::MutexLock lock(&mutex_);
  return health_;
}

bool PuppetDevice::Finish(absl::Status status) {
  InFlight oldest;
  {
    absl::MutexLock lock(&mutex_);
    if (in_flight_.empty()) return false;
    oldest = std::move(in_flight_.front());
    in_flight_.pop_front();
    changed_.SignalAll();
  }
  for (const auto& work : oldest.batch->works) {
    if (status.ok()) {
      WorkResult result;
      result.queue_duration = oldest.batch->start_time - work->arrival_time;
      result.batch_request_count =
          static_cast<int32_t>(oldest.batch->works.size());
      result.device_name = description_.name;
      work->done(std::move(result));
    } else {
      work->done(status);
    }
  }
  oldest.batch.reset();
  oldest.slot_free();
  return true;
}

void PuppetDevice::SetHealth(absl::Status status) {
  absl::MutexLock lock(&mutex_);
  health_ = std::move(status);
}

size_t PuppetDevice::in_flight() const {
  absl::MutexLock lock(&mutex_);
  return in_flight_.size();
}

void PuppetDevice::AwaitInFlight(size_t count) {
  absl::MutexLock lock(&mutex_);
  while (in_flight_.size() != count) changed_.Wait(&mutex_);
}

std::vector<PuppetDevice::Record> PuppetDevice::records() const {
  absl::MutexLock lock(&mutex_);
  return records_;
}

}  // namespace attention
