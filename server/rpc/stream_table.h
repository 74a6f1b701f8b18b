// The streams under way, to find those whose callers send nothing, and to end
// those that would not end by themselves.
#ifndef ATTENTION_SERVER_RPC_STREAM_TABLE_H_
#define ATTENTION_SERVER_RPC_STREAM_TABLE_H_

#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace attention {

class TrackedStream {
 public:
  virtual ~TrackedStream() = default;

  // Ends the stream if its caller has sent nothing since `limit` though that is
  // what it waits for. (For callers who take nothing there is WriteWatch.)
  virtual void EndIfIdleSince(absl::Time /*limit*/) {}

  // The server is going away. For streams that last as long as their callers
  // like: they answer what they have taken, and end.
  virtual void EndForDrain() {}
};

// Thread-safe.
class StreamTable {
 public:
  StreamTable() = default;
  // Waits for a Remove that is about to return.
  ~StreamTable() { absl::MutexLock lock(&mutex_); }

  void Add(const std::shared_ptr<TrackedStream>& stream)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Remove(TrackedStream* stream) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends the streams whose callers have sent nothing since `limit`.
  void EndIdleSince(absl::Time limit) ABSL_LOCKS_EXCLUDED(mutex_);

  // From now on streams are told that the server is going away.
  void Drain() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  std::vector<std::shared_ptr<TrackedStream>> Alive()
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_map<TrackedStream*, std::weak_ptr<TrackedStream>> streams_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_STREAM_TABLE_H_
