#include "tests/support/fake_clock.h"

#include <algorithm>
#include <thread>

namespace attention {

absl::Time FakeClock::Now() {
  absl::MutexLock lock(&mutex_);
  return now_;
}

void FakeClock::WaitUntil(absl::CondVar& condition, absl::Mutex& mutex,
                          absl::Time deadline) {
  std::list<Waiter>::iterator waiter;
  {
    absl::MutexLock lock(&mutex_);
    if (deadline <= now_) return;
    waiter = waiters_.insert(waiters_.end(), {&condition, &mutex, deadline});
    waiters_changed_.SignalAll();
  }
  // Advance signals under `mutex`, which is held since before the waiter was
  // listed: no signal is lost.
  condition.Wait(&mutex);
  absl::MutexLock lock(&mutex_);
  waiters_.erase(waiter);
}

// The analysis does not follow the mutex that a Waiter points to.
void FakeClock::Advance(absl::Duration duration)
    ABSL_NO_THREAD_SAFETY_ANALYSIS {
  mutex_.Lock();
  now_ += duration;
  for (;;) {
    const absl::Time now = now_;
    const auto due = std::find_if(
        waiters_.begin(), waiters_.end(),
        [now](const Waiter& w) { return !w.woken && w.deadline <= now; });
    if (due == waiters_.end()) break;
    // Waiters take this clock's mutex while they hold theirs. The other order
    // must therefore not block, and letting go of this clock's mutex allows the
    // waiter, with its mutex, to disappear.
    if (due->mutex->TryLock()) {
      due->condition->SignalAll();
      due->mutex->Unlock();
      due->woken = true;
    } else {
      mutex_.Unlock();
      std::this_thread::yield();
      mutex_.Lock();
    }
  }
  mutex_.Unlock();
}

void FakeClock::AwaitWaiter(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  while (std::none_of(
      waiters_.begin(), waiters_.end(),
      [deadline](const Waiter& w) { return w.deadline == deadline; })) {
    waiters_changed_.Wait(&mutex_);
  }
}

}  // namespace attention
