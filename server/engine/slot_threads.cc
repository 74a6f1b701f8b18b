#include "server/engine/slot_threads.h"

namespace attention {

SlotThreads::SlotThreads(
    int slot_count,
    std::function<void(int slot, std::unique_ptr<Batch> batch)> run)
    : run_(std::move(run)) {
  for (int slot = 0; slot < slot_count; ++slot) {
    threads_.emplace_back([this, slot] { Loop(slot); });
  }
}

SlotThreads::~SlotThreads() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

void SlotThreads::Run(std::unique_ptr<Batch> batch,
                      absl::AnyInvocable<void()> slot_free) {
  absl::MutexLock lock(&mutex_);
  tasks_.push_back({std::move(batch), std::move(slot_free)});
}

void SlotThreads::Loop(int slot) {
  while (true) {
    Task task;
    {
      absl::MutexLock lock(&mutex_,
                           absl::Condition(this, &SlotThreads::HasTaskOrStops));
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    run_(slot, std::move(task.batch));
    task.slot_free();
  }
}

}  // namespace attention
