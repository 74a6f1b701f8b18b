#include "server/engine/slot_threads.h"

namespace attention {

namespace {

// While one thread gives a batch's answers another computes on its slot.
constexpr int kThreadsPerSlot = 2;

}  // namespace

SlotThreads::SlotThreads(int slot_count, RunOnSlot run) : run_(std::move(run)) {
  for (int slot = slot_count - 1; slot >= 0; --slot)
    free_slots_.push_back(slot);
  for (int i = 0; i < kThreadsPerSlot * slot_count; ++i) {
    threads_.emplace_back([this] { Loop(); });
  }
}

SlotThreads::~SlotThreads() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
  absl::MutexLock lock(&mutex_,
                       absl::Condition(this, &SlotThreads::NobodyIsInside));
}

void SlotThreads::Run(std::unique_ptr<Batch> batch,
                      absl::AnyInvocable<void()> slot_free) {
  const bool is_short = batch->is_short;
  Task task = {std::move(batch), std::move(slot_free)};
  int slot;
  {
    absl::MutexLock lock(&mutex_);
    if (!is_short || free_slots_.empty() || !tasks_.empty()) {
      tasks_.push_back(std::move(task));
      return;
    }
    slot = TakeSlot();
    ++callers_inside_;
  }
  RunOn(slot, std::move(task));
  absl::MutexLock lock(&mutex_);
  --callers_inside_;
}

void SlotThreads::Loop() {
  while (true) {
    Task task;
    int slot;
    {
      absl::MutexLock lock(&mutex_,
                           absl::Condition(this, &SlotThreads::CanStartOrStop));
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
      slot = TakeSlot();
    }
    RunOn(slot, std::move(task));
  }
}

void SlotThreads::RunOn(int slot, Task task) {
  run_(slot, std::move(task.batch), [&] {
    {
      // Before the call, which may bring the next batch.
      absl::MutexLock lock(&mutex_);
      free_slots_.push_back(slot);
    }
    task.slot_free();
  });
}

int SlotThreads::TakeSlot() {
  const int slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

}  // namespace attention
