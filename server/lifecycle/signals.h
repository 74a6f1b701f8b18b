// SIGTERM and SIGINT as events.
#ifndef ATTENTION_SERVER_LIFECYCLE_SIGNALS_H_
#define ATTENTION_SERVER_LIFECYCLE_SIGNALS_H_

#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace attention {

// Receives the signals on a thread of its own, where any code may run, instead
// of in a handler, where hardly any may. The first signal is remembered for
// Wait; each later one is passed to `on_repeat`.
//
// Create it before any other thread: signals are blocked for the calling thread
// and for those that it starts.
class SignalWatcher {
 public:
  static absl::StatusOr<std::unique_ptr<SignalWatcher>> Create(
      std::function<void(int signal)> on_repeat);
  ~SignalWatcher();

  // The first signal as soon as it has arrived; 0 after `timeout` without one.
  int Wait(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  SignalWatcher(int signal_fd, int stop_fd,
                std::function<void(int signal)> on_repeat);
  void Run();

  const int signal_fd_;
  const int stop_fd_;
  const std::function<void(int signal)> on_repeat_;
  absl::Mutex mutex_;
  int first_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_LIFECYCLE_SIGNALS_H_
