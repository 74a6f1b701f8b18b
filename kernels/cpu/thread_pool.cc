#include "kernels/cpu/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace attention::cpu {

using Body = absl::FunctionRef<void(int64_t iteration, int thread)>;

struct ThreadPool::Impl {
  explicit Impl(int thread_count) : thread_count(std::max(thread_count, 1)) {
    for (int thread = 1; thread < this->thread_count; ++thread) {
      workers.emplace_back([this] { Work(); });
    }
  }

  ~Impl() {
    {
      absl::MutexLock lock(&mutex);
      stopping = true;
      wake_up.SignalAll();
    }
    for (std::thread& worker : workers) worker.join();
  }

  void Work() ABSL_LOCKS_EXCLUDED(mutex) {
    absl::MutexLock lock(&mutex);
    while (true) {
      while (!stopping && open_places == 0) wake_up.Wait(&mutex);
      if (stopping) return;
      const int thread = static_cast<int>(open_places--);  // 0 is the caller
      ++running;
      const Body& loop_body = *body;
      const int64_t loop_count = count;
      mutex.Unlock();
      RunIterations(loop_count, loop_body, thread);
      mutex.Lock();
      if (--running == 0) loop_left.Signal();
    }
  }

  void RunIterations(int64_t loop_count, const Body& loop_body, int thread) {
    // Relaxed is enough: the mutex orders the loop's start and its end.
    int64_t iteration;
    while ((iteration = next.fetch_add(1, std::memory_order_relaxed)) <
           loop_count) {
      loop_body(iteration, thread);
    }
  }

  void ParallelFor(int64_t loop_count, const Body& loop_body)
      ABSL_LOCKS_EXCLUDED(turn, mutex) {
    absl::MutexLock turn_lock(&turn);
    const int64_t helpers = std::min<int64_t>(loop_count, thread_count) - 1;
    next.store(0, std::memory_order_relaxed);
    if (helpers > 0) {
      absl::MutexLock lock(&mutex);
      body = &loop_body;
      count = loop_count;
      open_places = helpers;
      for (int64_t i = 0; i < helpers; ++i) wake_up.Signal();
    }
    RunIterations(loop_count, loop_body, /*thread=*/0);
    if (helpers > 0) {
      absl::MutexLock lock(&mutex);
      // Workers that have not woken up yet are not waited for.
      open_places = 0;
      while (running > 0) loop_left.Wait(&mutex);
    }
  }

  const int thread_count;
  std::vector<std::thread> workers;
  absl::Mutex turn ABSL_ACQUIRED_BEFORE(mutex);  // held for a whole loop
  std::atomic<int64_t> next{0};                  // the next iteration

  absl::Mutex mutex;
  absl::CondVar wake_up;
  absl::CondVar loop_left;
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  const Body* body ABSL_GUARDED_BY(mutex) = nullptr;
  int64_t count ABSL_GUARDED_BY(mutex) = 0;
  int64_t open_places ABSL_GUARDED_BY(mutex) = 0;  // workers that may join
  int64_t running ABSL_GUARDED_BY(mutex) = 0;      // workers that have joined
};

ThreadPool::ThreadPool(int thread_count)
    : impl_(std::make_unique<Impl>(thread_count)) {}

ThreadPool::~ThreadPool() = default;

int ThreadPool::thread_count() const { return impl_->thread_count; }

void ThreadPool::ParallelFor(int64_t count, Body body) {
  if (count > 0) impl_->ParallelFor(count, body);
}

}  // namespace attention::cpu
