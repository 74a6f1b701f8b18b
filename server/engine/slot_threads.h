// The threads on which a device works, one per slot.
#ifndef ATTENTION_SERVER_ENGINE_SLOT_THREADS_H_
#define ATTENTION_SERVER_ENGINE_SLOT_THREADS_H_

#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "server/engine/attention_work.h"

namespace attention {

// Hands each batch to the next free thread, in the order of arrival.
// Thread-safe.
class SlotThreads {
 public:
  // `run` computes a batch on the given slot, in [0, slot_count); it is called
  // for one batch per slot at a time and must outlive this object.
  SlotThreads(int slot_count,
              std::function<void(int slot, std::unique_ptr<Batch> batch)> run);
  // Runs what has been given to it, then returns.
  ~SlotThreads();

  // Returns at once. `slot_free` is called after the batch has run.
  void Run(std::unique_ptr<Batch> batch, absl::AnyInvocable<void()> slot_free)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Task {
    std::unique_ptr<Batch> batch;
    absl::AnyInvocable<void()> slot_free;
  };

  void Loop(int slot);
  bool HasTaskOrStops() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !tasks_.empty();
  }

  const std::function<void(int, std::unique_ptr<Batch>)> run_;
  absl::Mutex mutex_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_SLOT_THREADS_H_
