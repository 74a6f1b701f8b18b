// The way of a request through the server without gRPC's part of it: from the
// slices of a message to scanner, decoder, scheduler, device and encoder.
#ifndef ATTENTION_TESTS_SERVER_HOT_PATH_REQUEST_PATH_H_
#define ATTENTION_TESTS_SERVER_HOT_PATH_REQUEST_PATH_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/engine/copy_threads.h"
#include "server/engine/cuda/cuda_runtime.h"
#include "server/engine/device.h"
#include "server/memory/memory_pool.h"
#include "server/metrics/metrics.h"
#include "server/scheduling/scheduler.h"

namespace attention::test {

enum class PathBackend { kCpu, kCuda };

// The parts of a server. Its GPU moves bytes but computes nothing.
class RequestPath {
 public:
  // The serialised request of every call arrives in slices as large as gRPC's.
  // `max_inline_time` as in Scheduler::Options.
  RequestPath(PathBackend backend, std::string message,
              absl::Duration max_inline_time);
  ~RequestPath();

  // `count` requests, one after the other or all at once, through to their
  // encoded answers. Returns the bytes of one answer.
  size_t RunOneByOne(int count);
  size_t RunAtOnce(int count);

  const Metrics& metrics() const { return metrics_; }

 private:
  void Start();
  void WaitForAnswers(int count) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::string message_;
  std::vector<absl::string_view> fragments_;
  Metrics metrics_{{}};
  std::unique_ptr<CudaRuntime> runtime_;
  std::unique_ptr<MemoryPool> host_pool_;
  std::unique_ptr<MemoryPool> device_pool_;
  CopyThreads copy_threads_{0};
  std::unique_ptr<Device> device_;
  std::unique_ptr<Scheduler> scheduler_;
  absl::Mutex mutex_;
  int answered_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t answer_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace attention::test

#endif  // ATTENTION_TESTS_SERVER_HOT_PATH_REQUEST_PATH_H_
