// Makes Abseil's synchronisation known to ThreadSanitizer.
//
// Distributions ship Abseil as shared libraries that are not instrumented, so
// ThreadSanitizer would see neither locks nor waits and report every access
// that they order. The functions here take the place of the libraries' in a
// program, announce what is about to happen and call the original. A timeout is
// turned into a deadline, as the originals do: they call the function with the
// deadline, which is one of ours, and it must be announced only once. Linked
// into every program of a ThreadSanitizer build, and into nothing else.
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include "absl/base/config.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

// The length of the inline namespace is a part of mangled names.
static_assert(
    sizeof(ABSL_INTERNAL_TOKEN_STR(ABSL_OPTION_INLINE_NAMESPACE_NAME)) - 1 == 7,
    "adapt the names below to this build of Abseil");
#define ABSL_NAME(before, after) \
  before "7" ABSL_INTERNAL_TOKEN_STR(ABSL_OPTION_INLINE_NAMESPACE_NAME) after

namespace absl {
ABSL_NAMESPACE_BEGIN
namespace {

template <typename Function>
Function* Original(const char* name) {
  void* address = dlsym(RTLD_NEXT, name);
  if (address == nullptr) __builtin_trap();  // another version of Abseil
  return reinterpret_cast<Function*>(address);
}

}  // namespace

#define ORIGINAL(name, type) \
  static auto* const original = Original<type>(ABSL_NAME("_ZN4absl", name))
#define CONST_ORIGINAL(name, type) \
  static auto* const original = Original<type>(ABSL_NAME("_ZNK4absl", name))

// --- Locking and unlocking. Memory accesses between `pre` and `post` are not
// checked: Abseil evaluates the conditions of waiters there.

void Mutex::Lock() {
  ORIGINAL("5Mutex4LockEv", void(Mutex*));
  __tsan_mutex_pre_lock(this, 0);
  original(this);
  __tsan_mutex_post_lock(this, 0, 0);
}

void Mutex::Unlock() {
  ORIGINAL("5Mutex6UnlockEv", void(Mutex*));
  __tsan_mutex_pre_unlock(this, 0);
  original(this);
  __tsan_mutex_post_unlock(this, 0);
}

bool Mutex::TryLock() {
  ORIGINAL("5Mutex7TryLockEv", bool(Mutex*));
  __tsan_mutex_pre_lock(this, __tsan_mutex_try_lock);
  const bool locked = original(this);
  __tsan_mutex_post_lock(
      this, __tsan_mutex_try_lock | (locked ? 0 : __tsan_mutex_try_lock_failed),
      0);
  return locked;
}

void Mutex::ReaderLock() {
  ORIGINAL("5Mutex10ReaderLockEv", void(Mutex*));
  __tsan_mutex_pre_lock(this, __tsan_mutex_read_lock);
  original(this);
  __tsan_mutex_post_lock(this, __tsan_mutex_read_lock, 0);
}

void Mutex::ReaderUnlock() {
  ORIGINAL("5Mutex12ReaderUnlockEv", void(Mutex*));
  __tsan_mutex_pre_unlock(this, __tsan_mutex_read_lock);
  original(this);
  __tsan_mutex_post_unlock(this, __tsan_mutex_read_lock);
}

void Mutex::LockWhen(const Condition& condition) {
  ORIGINAL("5Mutex8LockWhenERKNS0_9ConditionE", void(Mutex*, const Condition&));
  __tsan_mutex_pre_lock(this, 0);
  original(this, condition);
  __tsan_mutex_post_lock(this, 0, 0);
}

bool Mutex::LockWhenWithTimeout(const Condition& condition, Duration timeout) {
  return LockWhenWithDeadline(condition, Now() + timeout);
}

bool Mutex::LockWhenWithDeadline(const Condition& condition, Time deadline) {
  ORIGINAL("5Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE",
           bool(Mutex*, const Condition&, Time));
  __tsan_mutex_pre_lock(this, 0);
  const bool result = original(this, condition, deadline);
  __tsan_mutex_post_lock(this, 0, 0);
  return result;
}

// --- Waits: the mutex is given up and taken again.

namespace {

class WaitScope {
 public:
  explicit WaitScope(Mutex* mutex) : mutex_(mutex) {
    __tsan_mutex_pre_unlock(mutex_, 0);
    __tsan_mutex_post_unlock(mutex_, 0);
    __tsan_mutex_pre_lock(mutex_, 0);
  }
  ~WaitScope() { __tsan_mutex_post_lock(mutex_, 0, 0); }

 private:
  Mutex* const mutex_;
};

}  // namespace

void Mutex::Await(const Condition& condition) {
  ORIGINAL("5Mutex5AwaitERKNS0_9ConditionE", void(Mutex*, const Condition&));
  WaitScope scope(this);
  original(this, condition);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  return AwaitWithDeadline(condition, Now() + timeout);
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  ORIGINAL("5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE",
           bool(Mutex*, const Condition&, Time));
  WaitScope scope(this);
  return original(this, condition, deadline);
}

void CondVar::Wait(Mutex* mutex) {
  ORIGINAL("7CondVar4WaitEPNS0_5MutexE", void(CondVar*, Mutex*));
  WaitScope scope(mutex);
  original(this, mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  return WaitWithDeadline(mutex, Now() + timeout);
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  ORIGINAL("7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE",
           bool(CondVar*, Mutex*, Time));
  WaitScope scope(mutex);
  return original(this, mutex, deadline);
}

// --- Events: an atomic fast path inside the library orders memory.

void Notification::Notify() {
  ORIGINAL("12Notification6NotifyEv", void(Notification*));
  __tsan_release(this);
  original(this);
}

void Notification::WaitForNotification() const {
  CONST_ORIGINAL("12Notification19WaitForNotificationEv",
                 void(const Notification*));
  original(this);
  __tsan_acquire(const_cast<Notification*>(this));
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  CONST_ORIGINAL(
      "12Notification30WaitForNotificationWithTimeoutENS0_8DurationE",
      bool(const Notification*, Duration));
  const bool notified = original(this, timeout);
  if (notified) __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}

bool Notification::WaitForNotificationWithDeadline(Time deadline) const {
  CONST_ORIGINAL("12Notification31WaitForNotificationWithDeadlineENS0_4TimeE",
                 bool(const Notification*, Time));
  const bool notified = original(this, deadline);
  if (notified) __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}

bool BlockingCounter::DecrementCount() {
  ORIGINAL("15BlockingCounter14DecrementCountEv", bool(BlockingCounter*));
  __tsan_release(this);
  return original(this);
}

void BlockingCounter::Wait() {
  ORIGINAL("15BlockingCounter4WaitEv", void(BlockingCounter*));
  original(this);
  __tsan_acquire(this);
}

ABSL_NAMESPACE_END
}  // namespace absl
