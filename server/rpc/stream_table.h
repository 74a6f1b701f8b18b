// The streams under way, to find those that do not move.
#ifndef ATTENTION_SERVER_RPC_STREAM_TABLE_H_
#define ATTENTION_SERVER_RPC_STREAM_TABLE_H_

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace attention {

class StreamCall;

// Thread-safe.
class StreamTable {
 public:
  StreamTable() = default;
  // Waits for a Remove that is about to return.
  ~StreamTable() { absl::MutexLock lock(&mutex_); }

  void Add(const std::shared_ptr<StreamCall>& call) ABSL_LOCKS_EXCLUDED(mutex_);
  void Remove(StreamCall* call) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends the streams that have not moved since `limit`.
  void EndIdleSince(absl::Time limit) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Mutex mutex_;
  absl::flat_hash_map<StreamCall*, std::weak_ptr<StreamCall>> calls_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_STREAM_TABLE_H_
