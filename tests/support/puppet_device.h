// A device that computes nothing and finishes a batch when the test says so.
#ifndef ATTENTION_TESTS_SUPPORT_PUPPET_DEVICE_H_
#define ATTENTION_TESTS_SUPPORT_PUPPET_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/engine/device.h"

namespace attention {

// Thread-safe. Callbacks run on the thread that calls Finish.
class PuppetDevice final : public Device {
 public:
  // What a batch was when it arrived.
  struct Record {
    HeadConfig config;
    FlushReason flush_reason;
    bool is_short;
    absl::Time start_time;
    // One per work, in order: a test gives its works different numbers to tell
    // them apart.
    std::vector<int64_t> query_tokens;
    int required_device = kAnyDevice;  // of all works
    std::optional<uint64_t> kv_batch_number;
  };

  explicit PuppetDevice(std::string name = "puppet:0", int slot_count = 1,
                        size_t memory_bytes = size_t{1} << 30);
  // Finishes what is in flight with ABORTED.
  ~PuppetDevice() override;

  const DeviceDescription& description() const override { return description_; }
  int slot_count() const override { return slot_count_; }
  absl::StatusOr<std::unique_ptr<InputUpload>> ReserveInputs(
      const InputSizes& sizes) override;
  absl::Status ReserveResults(AttentionWork& work) override;
  void Run(std::unique_ptr<Batch> batch,
           absl::AnyInvocable<void()> slot_free) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status health() const override ABSL_LOCKS_EXCLUDED(mutex_);

  // Answers every work of the oldest batch in flight, with a result when
  // `status` is OK, and frees its slot. False when no batch is in flight.
  bool Finish(absl::Status status = absl::OkStatus())
      ABSL_LOCKS_EXCLUDED(mutex_);

  // From now on health() is `status`.
  void SetHealth(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);

  // What uploads and reserved results have got.
  size_t used_memory_bytes() const { return pool_.usage().in_use_bytes; }

  size_t in_flight() const ABSL_LOCKS_EXCLUDED(mutex_);
  void AwaitInFlight(size_t count) ABSL_LOCKS_EXCLUDED(mutex_);

  // All batches so far.
  std::vector<Record> records() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct InFlight {
    std::unique_ptr<Batch> batch;
    absl::AnyInvocable<void()> slot_free;
  };

  const DeviceDescription description_;
  const int slot_count_;
  MemoryPool pool_;
  mutable absl::Mutex mutex_;
  absl::CondVar changed_;
  absl::Status health_ ABSL_GUARDED_BY(mutex_);
  std::deque<InFlight> in_flight_ ABSL_GUARDED_BY(mutex_);
  std::vector<Record> records_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attention

#endif  // ATTENTION_TESTS_SUPPORT_PUPPET_DEVICE_H_
