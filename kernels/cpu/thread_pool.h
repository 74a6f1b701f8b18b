// Runs the iterations of a loop on several threads.
#ifndef ATTENTION_KERNELS_CPU_THREAD_POOL_H_
#define ATTENTION_KERNELS_CPU_THREAD_POOL_H_

#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"

namespace attention::cpu {

// `thread_count - 1` threads beside the caller's. Thread-safe: concurrent loops
// take turns. Do not call ParallelFor from within a loop body.
class ThreadPool {
 public:
  explicit ThreadPool(int thread_count);
  ~ThreadPool();

  int thread_count() const;

  // Calls body(iteration, thread) for every iteration in [0, count), with
  // thread in [0, min(count, thread_count())), each index used by one thread
  // at a time. Iterations are handed out in order, one by one. Returns when all
  // are done.
  void ParallelFor(
      int64_t count,
      absl::FunctionRef<void(int64_t iteration, int thread)> body);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace attention::cpu

#endif  // ATTENTION_KERNELS_CPU_THREAD_POOL_H_
