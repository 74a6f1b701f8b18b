// Writes under way, to end calls whose callers do not take what they are sent:
// it would occupy memory, and keep a draining server, for as long as they like.
#ifndef ATTENTION_SERVER_TRANSPORT_WRITE_WATCH_H_
#define ATTENTION_SERVER_TRANSPORT_WRITE_WATCH_H_

#include <cstddef>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/scheduling/clock.h"

namespace attention {

class ServerCall;

// How long a message of that size may take on its way, since nobody learns of
// its progress: by the slowest connection that is served, 1 MiB/s.
absl::Duration TransferTime(size_t bytes);

// Thread-safe. Outlives the calls.
class WriteWatch {
 public:
  // Writes may take `patience` and their TransferTime by `clock`.
  WriteWatch(Clock* clock, absl::Duration patience)
      : clock_(clock), patience_(patience) {}

  // Around a write. A call has one at a time.
  void Begin(ServerCall* call, size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void End(ServerCall* call) ABSL_LOCKS_EXCLUDED(mutex_);

  // Cancels the calls whose time is over.
  void CancelOverdue() ABSL_LOCKS_EXCLUDED(mutex_);

  int64_t under_way() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Clock* const clock_;
  const absl::Duration patience_;
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<ServerCall*, absl::Time> deadlines_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace attention

#endif  // ATTENTION_SERVER_TRANSPORT_WRITE_WATCH_H_
