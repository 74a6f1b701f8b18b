#include "server/lifecycle/host_memory.h"

#include <malloc.h>

#include <algorithm>
#include <thread>

namespace attention {

void TuneAllocator() {
  // Requests arrive in slices of up to 64 KiB. Few arenas, so that their memory
  // is found again by whichever thread reads the next message: each further one
  // comes to hold a large message's worth of its own. Where many threads read
  // small messages, four of them answer a sixth more (server/bench/RESULTS.md).
  // Large thresholds, so that memory stays mapped in between; ReleaseFreeMemory
  // gives it back.
  mallopt(M_ARENA_MAX, std::thread::hardware_concurrency() < 8 ? 1 : 4);
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 16 << 20);
}

void ReleaseFreeMemory() { malloc_trim(0); }

bool IdleDetector::BecameIdle(absl::Time now, int64_t started,
                              int64_t finished) {
  if (started != last_started_ || started != finished) {
    last_started_ = started;
    idle_since_ = started == finished ? now : absl::InfiniteFuture();
    reported_ = false;
    return false;
  }
  idle_since_ = std::min(idle_since_, now);
  if (reported_ || now - idle_since_ < delay_) return false;
  reported_ = true;
  return true;
}

}  // namespace attention
