// Monotonic time as a dependency, so that tests decide what time it is.
#ifndef ATTENTION_CLIENT_LOADTEST_LOAD_CLOCK_H_
#define ATTENTION_CLIENT_LOADTEST_LOAD_CLOCK_H_

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace attention::loadtest {

// Thread-safe. Latencies must not jump when the system's time is set, hence a
// clock of durations since a fixed, unspecified moment.
class LoadClock {
 public:
  virtual ~LoadClock() = default;

  virtual absl::Duration Now() = 0;

  // Waits on `condition` until it is signalled or until `moment` (may be
  // infinite). May wake up spuriously: callers loop.
  virtual void WaitUntil(absl::CondVar& condition, absl::Mutex& mutex,
                         absl::Duration moment)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) = 0;

  // The steady clock; never destroyed.
  static LoadClock& Steady();
};

}  // namespace attention::loadtest

#endif  // ATTENTION_CLIENT_LOADTEST_LOAD_CLOCK_H_
