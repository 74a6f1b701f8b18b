#include "server/scheduling/device_scheduler.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/error_reason.h"

namespace attention {
namespace {

constexpr absl::Duration kMinRetryDelay = absl::Milliseconds(10);
constexpr absl::Duration kMaxRetryDelay = absl::Seconds(5);

absl::Status ExpiredStatus(absl::string_view when) {
  return WithReason(
      absl::DeadlineExceededError(absl::StrCat("the deadline passed ", when)),
      error_reason::kDeadlineExceeded);
}

absl::Status DrainingStatus() {
  return WithReason(absl::UnavailableError("the server is shutting down"),
                    error_reason::kDraining);
}

}  // namespace

DeviceScheduler::DeviceScheduler(const Options& options,
                                 std::vector<Device*> devices, Metrics* metrics,
                                 Clock* clock)
    : options_(options),
      devices_(std::move(devices)),
      metrics_(metrics),
      clock_(clock),
      queues_(options) {
  metrics_->SetQueueLimits(options.max_queued_requests, options.max_queued_bytes);
  for (const Device* device : devices_) {
    const int slot_count = device->slot_count();
    states_.push_back({.slot_count = slot_count, .free_slots = slot_count});
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

absl::StatusOr<WorkId> DeviceScheduler::Enqueue(
    std::unique_ptr<AttentionWork>& work) {
  NoteFailures();
  const size_t bytes = TensorBytes(*work);
  WorkId id = 0;
  absl::Status admission;
  const char* refused_label = nullptr;
  Step step;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = clock_->Now();
    admission = CheckAdmission(*work, bytes, now, refused_label);
    if (admission.ok()) {
      work->arrival_time = now;
      // Under the lock, so that no dequeueing is counted before.
      metrics_->WorkQueued(work->config, bytes);
      id = queues_.Push(std::move(work));
    }
    step = TakeStep(now);
  }
  Perform(std::move(step));
  if (!admission.ok()) {
    metrics_->WorkRefused(refused_label);
    return admission;
  }
  return id;
}

absl::Status DeviceScheduler::CheckAdmission(const AttentionWork& work,
                                             size_t bytes, absl::Time now,
                                             const char*& label) const {
  if (bytes > options_.max_request_bytes) {
    label = "too_large";
    return WithReason(
        absl::ResourceExhaustedError(
            absl::StrCat("the request's tensors, in and out, may have at most ",
                         options_.max_request_bytes, " bytes; got ", bytes)),
        error_reason::kRequestTooLarge);
  }
  if (draining_) {
    label = "draining";
    return DrainingStatus();
  }
  if (!all_failed_.ok()) {
    label = "device_failed";
    return all_failed_;
  }
  if (work.deadline <= now) {
    label = "deadline";
    return ExpiredStatus("before the request was queued");
  }
  if (queues_.size() >= static_cast<size_t>(options_.max_queued_requests)) {
    label = "queue_full_requests";
    return WithReason(
        absl::ResourceExhaustedError(absl::StrCat(
            "the queue is full: ", queues_.size(), " requests wait of at most ",
            options_.max_queued_requests)),
        error_reason::kQueueFull);
  }
  // An empty queue takes any request: one larger than the bound could otherwise
  // never run, however often it is retried.
  if (queues_.size() > 0 &&
      bytes > options_.max_queued_bytes -
                  std::min(queues_.bytes(), options_.max_queued_bytes)) {
    label = "queue_full_bytes";
    return WithReason(
        absl::ResourceExhaustedError(absl::StrCat(
            "the queue is full: ", queues_.bytes(), " bytes wait of at most ",
            options_.max_queued_bytes, ", the request has ", bytes)),
        error_reason::kQueueFull);
  }
  return absl::OkStatus();
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

std::optional<size_t> DeviceScheduler::PickDevice() const {
  std::optional<size_t> best;
  for (size_t i = 0; i < states_.size(); ++i) {
    const DeviceState& state = states_[i];
    if (state.failed || state.free_slots == 0) continue;
    if (!best.has_value() ||
        std::tuple(-state.free_slots, state.bytes_in_flight) <
            std::tuple(-states_[*best].free_slots,
                       states_[*best].bytes_in_flight)) {
      best = i;
    }
  }
  return best;
}

DeviceScheduler::Step DeviceScheduler::TakeStep(absl::Time now) {
  Step step;
  step.expired = queues_.TakeExpired(now);
  if (!all_failed_.ok()) {
    step.stranded = queues_.TakeAll();
  } else if (const std::optional<size_t> device = PickDevice()) {
    step.batch = queues_.TakeBatch(now, draining_);
    if (step.batch != nullptr) {
      for (const auto& work : step.batch->works) {
        step.batch_bytes += TensorBytes(*work);
      }
      step.device = *device;
      --states_[*device].free_slots;
      states_[*device].bytes_in_flight += step.batch_bytes;
      ++busy_;
    }
  }
  if (!step.expired.empty() || !step.stranded.empty()) ++busy_;
  if (NextWake() < timer_wake_) timer_wake_up_.Signal();
  return step;
}

void DeviceScheduler::Perform(Step step) {
  for (;;) {
    const bool has_batch = step.batch != nullptr;
    if (has_batch) RunBatch(step);
    if (!step.expired.empty() || !step.stranded.empty()) {
      Answer(std::move(step.expired),
             ExpiredStatus("while the request waited for a device"),
             "deadline");
      if (!step.stranded.empty()) {
        absl::Status status;
        {
          absl::MutexLock lock(&mutex_);
          status = all_failed_;
        }
        Answer(std::move(step.stranded), status, "device_failed");
      }
      EndBusy();
    }
    if (!has_batch) return;
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
    metrics_->WorkDequeued(work->config, TensorBytes(*work));
    metrics_->PhaseFinished(Phase::kQueue, work->config,
                            batch.start_time - work->arrival_time);
  }
  auto slot_freed = [this, device = step.device, bytes = step.batch_bytes,
                     count = static_cast<int>(batch.works.size()),
                     start_time = batch.start_time] {
    SlotFreed(device, bytes, count, start_time);
  };
  devices_[step.device]->Run(std::move(step.batch), std::move(slot_freed));
}

void DeviceScheduler::SlotFreed(size_t device, size_t bytes, int request_count,
                                absl::Time start_time) {
  {
    absl::MutexLock lock(&mutex_);
    ++states_[device].free_slots;
    states_[device].bytes_in_flight -= bytes;
    service_time_.Observe(request_count, clock_->Now() - start_time);
  }
  Dispatch();
  // Last: from here on the destructor may run.
  EndBusy();
}

void DeviceScheduler::Answer(BatchQueues::Works works,
                             const absl::Status& status,
                             const char* dropped_label) {
  for (auto& work : works) {
    metrics_->WorkDequeued(work->config, TensorBytes(*work));
    metrics_->WorkDropped(dropped_label);
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
    if (rest.empty()) return finished;
    ++busy_;
  }
  Answer(std::move(rest), DrainingStatus(), "draining");
  EndBusy();
  return finished;
}

absl::Duration DeviceScheduler::RetryDelay() const {
  absl::MutexLock lock(&mutex_);
  int slots = 0;
  for (const DeviceState& state : states_) {
    if (!state.failed) slots += state.slot_count;
  }
  if (slots == 0) return kMaxRetryDelay;
  const double half_queue = static_cast<double>(queues_.size()) / 2;
  return std::clamp(service_time_.PerRequest() * half_queue / slots,
                    kMinRetryDelay, kMaxRetryDelay);
}

absl::Time DeviceScheduler::NextWake() const {
  const absl::Time deadline = queues_.EarliestDeadline();
  // Without a delay, whoever makes work ready or a slot free dispatches.
  if (options_.max_queue_delay == absl::ZeroDuration() ||
      !PickDevice().has_value()) {
    return deadline;
  }
  return std::min(deadline, queues_.EarliestReady());
}

void DeviceScheduler::RunTimer() {
  for (;;) {
    Step step;
    {
      absl::MutexLock lock(&mutex_);
      for (;;) {
        if (stopping_) return;
        const absl::Time now = clock_->Now();
        timer_wake_ = NextWake();
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
