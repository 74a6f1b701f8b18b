// Threads that help the slots of all devices to copy payloads and to give answers.
#ifndef ATTENTION_SERVER_ENGINE_COPY_THREADS_H_
#define ATTENTION_SERVER_ENGINE_COPY_THREADS_H_

#include <deque>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"

namespace attention {

// One thread copies scattered payloads at a fraction of what memory and bus can
// take, and sends small answers more slowly than a GPU computes them. Runs that go on at the same time take turns, piece by piece.
// Thread-safe.
class CopyThreads {
 public:
  // `helper_count` threads beside those that call Run; 0 is legal.
  explicit CopyThreads(int helper_count);
  // No Run may be going on.
  ~CopyThreads();

  int helper_count() const { return static_cast<int>(helpers_.size()); }

  // Calls copy(i) for every piece i in [0, count), begun in this order, on the
  // helpers and on the calling thread. Calls progress(n) on the calling thread
  // once the first n pieces are there, with n growing to `count`. Returns when
  // all is done.
  void Run(int count, absl::FunctionRef<void(int piece)> copy,
           absl::FunctionRef<void(int finished)> progress)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Job {
    bool HasProgress() const { return finished > reported; }

    const int count;
    const absl::FunctionRef<void(int)> copy;
    int next = 0;      // the first piece that nobody has begun
    int finished = 0;  // pieces from the front that are there
    int reported = 0;
    std::vector<bool> done;
  };

  void Help();
  bool HasJobOrStops() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !jobs_.empty();
  }
  int Begin(Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void Finish(Job& job, int piece);

  absl::Mutex mutex_;
  // Those with pieces to begin; the first is the next to be helped.
  std::deque<Job*> jobs_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> helpers_;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_ENGINE_COPY_THREADS_H_
