// A clock that stands still until a test moves it.
#ifndef ATTENTION_TESTS_SUPPORT_FAKE_CLOCK_H_
#define ATTENTION_TESTS_SUPPORT_FAKE_CLOCK_H_

#include <list>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/scheduling/clock.h"

namespace attention {

// Thread-safe.
class FakeClock final : public Clock {
 public:
  absl::Time Now() override ABSL_LOCKS_EXCLUDED(mutex_);
  void WaitUntil(absl::CondVar& condition, absl::Mutex& mutex,
                 absl::Time deadline) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // Moves the time on and wakes every wait whose deadline is reached. The
  // caller holds no mutex that a waiting thread uses.
  void Advance(absl::Duration duration) ABSL_LOCKS_EXCLUDED(mutex_);

  // Blocks until some thread waits for exactly `deadline`. So a test knows that
  // the thread has done all that was due before.
  void AwaitWaiter(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Waiter {
    absl::CondVar* condition;
    absl::Mutex* mutex;
    absl::Time deadline;
    bool woken = false;
  };

  absl::Mutex mutex_;
  absl::CondVar waiters_changed_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_) = absl::FromUnixSeconds(1'000'000);
  std::list<Waiter> waiters_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attention

#endif  // ATTENTION_TESTS_SUPPORT_FAKE_CLOCK_H_
