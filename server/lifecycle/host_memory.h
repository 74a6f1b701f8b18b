// The process's memory: keeping it while it is used, giving it back afterwards.
#ifndef ATTENTION_SERVER_LIFECYCLE_HOST_MEMORY_H_
#define ATTENTION_SERVER_LIFECYCLE_HOST_MEMORY_H_

#include <cstdint>

#include "absl/time/time.h"

namespace attention {

// Sets glibc's allocator up for messages of many megabytes that come and go. By
// default it returns each one's memory to the system, and pays for every page
// anew with the next one. Call once, before other threads exist.
void TuneAllocator();

// Gives the allocator's free memory back to the system.
void ReleaseFreeMemory();

// Decides when to give memory back: once after each burst of requests, when
// none has been there for `delay`. Not thread-safe.
class IdleDetector {
 public:
  explicit IdleDetector(absl::Duration delay) : delay_(delay) {}

  // To be called now and then with the counts of requests so far. True once per
  // idle period.
  bool BecameIdle(absl::Time now, int64_t started, int64_t finished);

 private:
  const absl::Duration delay_;
  int64_t last_started_ = 0;
  absl::Time idle_since_ = absl::InfiniteFuture();
  bool reported_ = true;  // nothing to give back before the first request
};

}  // namespace attention

#endif  // ATTENTION_SERVER_LIFECYCLE_HOST_MEMORY_H_
