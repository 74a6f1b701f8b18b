// Time as a dependency, so that tests decide what time it is.
#ifndef ATTENTION_SERVER_SCHEDULING_CLOCK_H_
#define ATTENTION_SERVER_SCHEDULING_CLOCK_H_

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace attention {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() = 0;

  // Waits on `condition` until it is signalled or until `deadline` by this
  // clock. May wake up spuriously: callers loop.
  virtual void WaitUntil(absl::CondVar& condition, absl::Mutex& mutex,
                         absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) = 0;

  // The system's clock; never destroyed.
  static Clock& Real();
};

}  // namespace attention

#endif  // ATTENTION_SERVER_SCHEDULING_CLOCK_H_
