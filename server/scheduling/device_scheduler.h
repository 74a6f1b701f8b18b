// The Scheduler: BatchQueues, driven by threads.
//
// No thread of its own sits between a request and a device. Whoever changes the
// state (a caller of Enqueue, a device that frees a slot, the timer) decides
// under the lock what follows from it, one Step at a time, and carries it out
// without the lock. The only thread is the timer's, for deadlines and
// max_queue_delay.
#ifndef ATTENTION_SERVER_SCHEDULING_DEVICE_SCHEDULER_H_
#define ATTENTION_SERVER_SCHEDULING_DEVICE_SCHEDULER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/engine/attention_work.h"
#include "server/engine/device.h"
#include "server/metrics/metrics.h"
#include "server/scheduling/batch_queues.h"
#include "server/scheduling/clock.h"
#include "server/scheduling/cost_model.h"
#include "server/scheduling/device_load.h"
#include "server/scheduling/scheduler.h"

namespace attention {

class DeviceScheduler final : public Scheduler {
 public:
  // Arguments as checked by Scheduler::Create.
  DeviceScheduler(const Options& options, std::vector<Device*> devices,
                  Metrics* metrics, Clock* clock);
  ~DeviceScheduler() override;

  absl::Status Calibrate(absl::Span<const HeadConfig> configs) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<WorkId> Enqueue(std::unique_ptr<AttentionWork>& work) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Cancel(WorkId id) override ABSL_LOCKS_EXCLUDED(mutex_);
  bool Drain(absl::Time deadline) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Duration RetryDelay() const override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct DeviceState {
    explicit DeviceState(int slot_count) : load(slot_count) {}

    DeviceLoad load;
    bool failed = false;
  };

  // Something to do without the lock. It counts as one in busy_ for its
  // answers, and as one more for its batch until that is answered.
  struct Step {
    BatchQueues::Works expired;
    BatchQueues::Works stranded;  // no device is left to run them
    absl::Status stranded_status;
    std::unique_ptr<Batch> batch;
    WorkCost batch_cost;
    absl::Duration predicted;  // time of the batch
    size_t device = 0;         // index
    uint64_t load_id = 0;  // of the batch in the device's load
  };

  // Why a work is not taken; OK when it is. Sets `label` for metrics.
  absl::Status CheckAdmission(const AttentionWork& work, const WorkCost& cost,
                              absl::Time now, const char*& label) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The least time in which the work can be done, as Scheduler describes; 0
  // while nothing can be said about it.
  absl::Duration LeastTime(const AttentionWork& work, const WorkCost& cost,
                           absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Predicted time in which the devices work off what waits: all of it, or what
  // may be ahead of works that require `device` (kAnyDevice: none).
  absl::Duration PredictedBacklog() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Duration PredictedBacklog(int device) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the device may compute works that require `required_device`.
  bool MayRun(size_t device, int required_device) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Asks every device for its health and notes failures.
  void NoteFailures() ABSL_LOCKS_EXCLUDED(mutex_);

  // The healthy devices with a free slot: those with the least predicted work
  // first, then those with the most free slots.
  absl::InlinedVector<size_t, 8> FreeDevices(absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Step TakeStep(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeStranded(Step& step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeBatch(Step& step, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Carries out the step and those that follow.
  void Perform(Step step) ABSL_LOCKS_EXCLUDED(mutex_);
  void Dispatch() ABSL_LOCKS_EXCLUDED(mutex_);
  void RunBatch(Step& step) ABSL_LOCKS_EXCLUDED(mutex_);
  void SlotFreed(size_t device, uint64_t load_id, size_t cost_class,
                 const WorkCost& cost) ABSL_LOCKS_EXCLUDED(mutex_);

  // Answers works that left their queue without running.
  void Answer(BatchQueues::Works works, const absl::Status& status,
              const char* dropped_label) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndBusy() ABSL_LOCKS_EXCLUDED(mutex_);

  // When the timer next has something to do.
  absl::Time NextWake(absl::Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunTimer() ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  const std::vector<Device*> devices_;
  Metrics* const metrics_;
  Clock* const clock_;

  mutable absl::Mutex mutex_;
  CostModel cost_model_ ABSL_GUARDED_BY(mutex_);
  BatchQueues queues_ ABSL_GUARDED_BY(mutex_);  // reads cost_model_
  std::vector<DeviceState> states_ ABSL_GUARDED_BY(mutex_);  // of devices_
  // OK while any device works, then the answer to all requests.
  absl::Status all_failed_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Batches in flight and answers under way. While it is above 0, some thread
  // may still use this object.
  int busy_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::CondVar idle_;  // busy_ fell to 0

  absl::CondVar timer_wake_up_;
  absl::Time timer_wake_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  std::thread timer_;  // started last
};

}  // namespace attention

#endif  // ATTENTION_SERVER_SCHEDULING_DEVICE_SCHEDULER_H_
