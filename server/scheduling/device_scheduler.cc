#include "server/scheduling/device_scheduler.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "server/engine/error_reason.h"
#include "server/scheduling/calibration.h"
#include "server/scheduling/exit_status.h"

namespace attention {
namespace {

std::vector<DeviceDescription> Describe(const std::vector<Device*>& devices) {
  std::vector<DeviceDescription> descriptions;
  for (const Device* device : devices) {
    descriptions.push_back(device->description());
  }
  return descriptions;
}

}  // namespace

DeviceScheduler::DeviceScheduler(const Options& options,
                                 std::vector<Device*> devices, Metrics* metrics,
                                 Clock* clock)
    : options_(options),
      devices_(std::move(devices)),
      metrics_(metrics),
      clock_(clock),
      cost_model_(Describe(devices_)),
      queues_(options, cost_model_) {
  metrics_->SetQueueLimits(options.max_queued_requests,
                           options.max_queued_bytes, options.max_queued_time);
  states_.reserve(devices_.size());
  for (const Device* device : devices_) {
    states_.emplace_back(device->slot_count());
  }
  timer_ = std::thread(&DeviceScheduler::RunTimer, this);
}

DeviceScheduler::~DeviceScheduler() {
  Drain(absl::InfinitePast());
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    timer_wake_up_.SignalAll();
    // Devices still hold callbacks into this object.
    while (busy_ > 0) idle_.Wait(&mutex_);
  }
  timer_.join();
}

absl::Status DeviceScheduler::Calibrate(absl::Span<const HeadConfig> configs) {
  absl::Status first_error;
  for (size_t i = 0; i < devices_.size(); ++i) {
    std::array<std::vector<Measurement>, kCostClassCount> by_class;
    for (const HeadConfig& config : configs) {
      auto measured = MeasureDevice(*devices_[i], config, *clock_);
      if (measured.ok()) {
        std::vector<Measurement>& all = by_class[CostClassOf(config)];
        all.insert(all.end(), measured->begin(), measured->end());
      } else if (first_error.ok()) {
        first_error = measured.status();
      }
    }
    absl::MutexLock lock(&mutex_);
    for (size_t c = 0; c < kCostClassCount; ++c) {
      cost_model_.Calibrate(i, c, by_class[c]);
    }
  }
  return first_error;
}

absl::StatusOr<WorkId> DeviceScheduler::Enqueue(
    std::unique_ptr<AttentionWork>& work) {
  NoteFailures();
  const WorkCost cost = CostOf(*work);
  WorkId id = 0;
  absl::Status admission;
  const char* refused_label = nullptr;
  Step step;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = clock_->Now();
    admission = CheckAdmission(*work, cost, now, refused_label);
    if (admission.ok()) {
      work->arrival_time = now;
      // Where there is only one, all works may share batches.
      if (devices_.size() == 1) work->required_device = kAnyDevice;
      // Under the lock, so that no dequeueing is counted before.
      metrics_->WorkQueued(work->config, work->moved_bytes());
      id = queues_.Push(std::move(work), cost);
    }
    step = TakeStep(now);
  }
  if (step.batch != nullptr) {
    step.batch->is_short =
        step.predicted <= options_.max_inline_time &&
        (options_.may_run_inline == nullptr || options_.may_run_inline());
  }
  Perform(std::move(step));
  if (!admission.ok()) {
    metrics_->WorkRefused(refused_label);
    return admission;
  }
  return id;
}

void DeviceScheduler::NoteFailures() {
  for (size_t i = 0; i < devices_.size(); ++i) {
    const absl::Status health = devices_[i]->health();
    if (health.ok()) continue;
    absl::MutexLock lock(&mutex_);
    if (states_[i].failed) continue;
    states_[i].failed = true;
    if (std::all_of(states_.begin(), states_.end(),
                    [](const DeviceState& s) { return s.failed; })) {
      all_failed_ = WithReason(
          absl::UnavailableError(absl::StrCat(
              "no device can compute any more; the last one, ",
              devices_[i]->description().name, ": ", health.message())),
          error_reason::kDeviceFailed);
    }
  }
}

absl::InlinedVector<size_t, 8> DeviceScheduler::FreeDevices(
    absl::Time now) const {
  absl::InlinedVector<std::tuple<absl::Duration, int, size_t>, 8> loads;
  for (size_t i = 0; i < states_.size(); ++i) {
    const DeviceState& state = states_[i];
    if (state.failed || state.load.free_slots() == 0) continue;
    loads.emplace_back(state.load.Remaining(now), -state.load.free_slots(), i);
  }
  std::sort(loads.begin(), loads.end());
  absl::InlinedVector<size_t, 8> devices;
  for (const auto& load : loads) devices.push_back(std::get<size_t>(load));
  return devices;
}

DeviceScheduler::Step DeviceScheduler::TakeStep(absl::Time now) {
  Step step;
  step.expired = queues_.TakeExpired(now);
  TakeStranded(step);
  if (all_failed_.ok()) TakeBatch(step, now);
  if (!step.expired.empty() || !step.stranded.empty()) ++busy_;
  metrics_->SetPredictedQueueTime(PredictedBacklog());
  if (NextWake(now) < timer_wake_) timer_wake_up_.Signal();
  return step;
}

void DeviceScheduler::TakeStranded(Step& step) {
  if (!all_failed_.ok()) {
    step.stranded = queues_.TakeAll();
    step.stranded_status = all_failed_;
    return;
  }
  for (size_t i = 0; i < states_.size() && step.stranded.empty(); ++i) {
    if (!states_[i].failed) continue;
    step.stranded = queues_.TakeRequiring(i);
    step.stranded_status = RequiredDeviceFailed(*devices_[i]);
  }
}

void DeviceScheduler::TakeBatch(Step& step, absl::Time now) {
  for (size_t device : FreeDevices(now)) {
    BatchQueues::Taken taken = queues_.TakeBatch(device, now, draining_);
    if (taken.batch == nullptr) continue;
    const size_t cost_class = CostClassOf(*taken.batch);
    step.predicted =
        cost_model_.Launch(device, cost_class) +
        cost_model_.Added(device, cost_class, taken.cost);
    step.batch = std::move(taken.batch);
    step.batch_cost = taken.cost;
    step.device = device;
    step.load_id = states_[device].load.Start(step.predicted, now);
    ++busy_;
    return;
  }
}

void DeviceScheduler::Perform(Step step) {
  for (;;) {
    const bool has_batch = step.batch != nullptr;
    const bool had_stranded = !step.stranded.empty();
    if (has_batch) RunBatch(step);
    if (!step.expired.empty() || !step.stranded.empty()) {
      Answer(std::move(step.expired),
             DeadlineStatus("passed while the request waited for a device"),
             "deadline");
      Answer(std::move(step.stranded), step.stranded_status, "device_failed");
      EndBusy();
    }
    if (!has_batch && !had_stranded) return;
    absl::MutexLock lock(&mutex_);
    step = TakeStep(clock_->Now());
  }
}

void DeviceScheduler::Dispatch() {
  NoteFailures();
  Step step;
  {
    absl::MutexLock lock(&mutex_);
    step = TakeStep(clock_->Now());
  }
  Perform(std::move(step));
}

void DeviceScheduler::RunBatch(Step& step) {
  const Batch& batch = *step.batch;
  for (const auto& work : batch.works) {
    metrics_->WorkDequeued(work->config, work->moved_bytes());
    metrics_->PhaseFinished(Phase::kQueue, work->config,
                            batch.start_time - work->arrival_time);
  }
  // Goes with its last answer; from then on the destructor may run.
  auto answered = absl::MakeCleanup([this] { EndBusy(); });
  auto slot_freed = [this, device = step.device, load_id = step.load_id,
                     cost_class = CostClassOf(batch), cost = step.batch_cost,
                     answered = std::move(answered)] {
    SlotFreed(device, load_id, cost_class, cost);
  };
  devices_[step.device]->Run(std::move(step.batch), std::move(slot_freed));
}

void DeviceScheduler::SlotFreed(size_t device, uint64_t load_id,
                                size_t cost_class, const WorkCost& cost) {
  // A device that has failed answers at once, which says nothing.
  const bool healthy = devices_[device]->health().ok();
  DeviceLoad::Finished finished;
  {
    absl::MutexLock lock(&mutex_);
    finished = states_[device].load.Finish(load_id, clock_->Now());
    if (healthy) {
      cost_model_.Observe(device, cost_class, cost, finished.taken);
    }
  }
  if (healthy) {
    metrics_->BatchPredicted(devices_[device]->description().name,
                             finished.predicted, finished.taken);
  }
  Dispatch();
}

void DeviceScheduler::Answer(BatchQueues::Works works,
                             const absl::Status& status,
                             const char* dropped_label) {
  for (auto& work : works) {
    metrics_->WorkDequeued(work->config, work->moved_bytes());
    metrics_->WorkDropped(dropped_label);
    work->ReleaseInputs();
    // One request's callback must not stop the answers to the others, nor end
    // the timer's thread.
    try {
      work->done(status);
    } catch (...) {
    }
    work.reset();
  }
}

void DeviceScheduler::EndBusy() {
  absl::MutexLock lock(&mutex_);
  if (--busy_ == 0) idle_.SignalAll();
}

void DeviceScheduler::Cancel(WorkId id) {
  BatchQueues::Works works;
  {
    absl::MutexLock lock(&mutex_);
    std::unique_ptr<AttentionWork> work = queues_.Remove(id);
    if (work == nullptr) return;
    metrics_->SetPredictedQueueTime(PredictedBacklog());
    works.push_back(std::move(work));
    ++busy_;
  }
  Answer(std::move(works),
         WithReason(absl::CancelledError("the caller cancelled the request"),
                    error_reason::kCancelled),
         "cancelled");
  EndBusy();
}

bool DeviceScheduler::Drain(absl::Time deadline) {
  {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
  }
  // What max_queue_delay held back may run now; with no time it could not end.
  if (clock_->Now() < deadline) Dispatch();
  BatchQueues::Works rest;
  bool finished = false;
  {
    absl::MutexLock lock(&mutex_);
    while ((busy_ > 0 || queues_.size() > 0) && clock_->Now() < deadline) {
      clock_->WaitUntil(idle_, mutex_, deadline);
    }
    finished = busy_ == 0 && queues_.size() == 0;
    rest = queues_.TakeAll();
    metrics_->SetPredictedQueueTime(absl::ZeroDuration());
    if (rest.empty()) return finished;
    ++busy_;
  }
  Answer(std::move(rest), DrainingStatus(), "draining");
  EndBusy();
  return finished;
}

absl::Time DeviceScheduler::NextWake(absl::Time now) const {
  const absl::Time deadline = queues_.EarliestDeadline();
  // Without a delay, whoever makes work ready or a slot free dispatches.
  if (options_.max_queue_delay == absl::ZeroDuration()) return deadline;
  absl::Time wake = deadline;
  for (size_t device : FreeDevices(now)) {
    wake = std::min(wake, queues_.EarliestReady(device));
  }
  return wake;
}

void DeviceScheduler::RunTimer() {
  for (;;) {
    Step step;
    {
      absl::MutexLock lock(&mutex_);
      for (;;) {
        if (stopping_) return;
        const absl::Time now = clock_->Now();
        timer_wake_ = NextWake(now);
        if (timer_wake_ <= now) {
          step = TakeStep(now);
          break;
        }
        clock_->WaitUntil(timer_wake_up_, mutex_, timer_wake_);
      }
    }
    Perform(std::move(step));
  }
}

}  // namespace attention
