// The threads on which a device works.
#ifndef ATTENTION_SERVER_ENGINE_SLOT_THREADS_H_
#define ATTENTION_SERVER_ENGINE_SLOT_THREADS_H_

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "server/engine/attention_work.h"

namespace attention {

// Gives each batch a free slot, in the order of arrival, and a thread: its own,
// or the caller's if the batch is short. Waking a thread takes as long as many
// a small batch, and its caches are cold. Thread-safe.
class SlotThreads {
 public:
  // Computes a batch on the given slot, in [0, slot_count), and calls free_slot
  // once, when it needs the slot no more. Called for one batch per slot at a
  // time.
  using RunOnSlot = std::function<void(int slot, std::unique_ptr<Batch> batch,
                                       absl::FunctionRef<void()> free_slot)>;

  // `run` must outlive this object.
  SlotThreads(int slot_count, RunOnSlot run);
  // Runs what has been given to it, then returns.
  ~SlotThreads();

  // Returns at once, except with a batch that is short. `slot_free` is called
  // when its slot is free, and destroyed after it has run.
  void Run(std::unique_ptr<Batch> batch, absl::AnyInvocable<void()> slot_free)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Task {
    std::unique_ptr<Batch> batch;
    absl::AnyInvocable<void()> slot_free;
  };

  void Loop();
  // Computes on a slot that has been taken, and gives it back meanwhile.
  void RunOn(int slot, Task task) ABSL_LOCKS_EXCLUDED(mutex_);

  int TakeSlot() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool CanStartOrStop() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return tasks_.empty() ? stopping_ : !free_slots_.empty();
  }
  bool NobodyIsInside() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return callers_inside_ == 0;
  }

  const RunOnSlot run_;
  absl::Mutex mutex_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  std::vector<int> free_slots_ ABSL_GUARDED_BY(mutex_);
  int callers_inside_ ABSL_GUARDED_BY(mutex_) = 0;  // that run a short batch
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_SLOT_THREADS_H_
