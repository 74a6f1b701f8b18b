// The scheduler's state: what waits, in which order, and what may run next.
//
// A passive state machine without threads, clocks or devices: every decision
// that depends on time takes `now`. Not thread-safe.
//
// Works of one head configuration wait first in, first out. Configurations take
// turns: one whose batch was taken goes to the back of the line.
#ifndef ATTENTION_SERVER_SCHEDULING_BATCH_QUEUES_H_
#define ATTENTION_SERVER_SCHEDULING_BATCH_QUEUES_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "kernels/attention_params.h"
#include "server/engine/attention_work.h"
#include "server/scheduling/scheduler.h"

namespace attention {

// Tensor bytes of a work, in and out: what limits and metrics count.
inline size_t TensorBytes(const AttentionWork& work) {
  return work.input_bytes() + work.result_bytes();
}

class BatchQueues {
 public:
  using Works = std::vector<std::unique_ptr<AttentionWork>>;

  // Reads the batch limits and the delay; bounds on what waits are the caller's
  // to enforce.
  explicit BatchQueues(const Scheduler::Options& options) : options_(options) {}

  // The work's arrival_time and deadline are set. Returns ids in ascending
  // order, from 1. O(log n).
  WorkId Push(std::unique_ptr<AttentionWork> work);

  // Null when the work is not queued (any more). O(log n).
  std::unique_ptr<AttentionWork> Remove(WorkId id);

  // Works whose deadline is at or before `now`, the earliest first.
  Works TakeExpired(absl::Time now);

  Works TakeAll();

  // The next batch, or null when no configuration is ready. A configuration is
  // ready when its work fills a batch, when its first work has waited for
  // max_queue_delay, or when `draining`. Expired work must have been taken out
  // before. The first work is taken whatever its size; others as long as they
  // fit the limits beside it, so a work larger than a limit runs alone.
  std::unique_ptr<Batch> TakeBatch(absl::Time now, bool draining);

  // When the first deadline passes; InfiniteFuture when there is none.
  absl::Time EarliestDeadline() const;

  // When TakeBatch will return a batch even if nothing more arrives;
  // InfiniteFuture when nothing is queued. Linear in the number of
  // configurations queued.
  absl::Time EarliestReady() const;

  size_t size() const { return by_id_.size(); }
  size_t bytes() const { return bytes_; }

 private:
  struct Queue;

  struct Entry {
    WorkId id;
    std::unique_ptr<AttentionWork> work;
    size_t bytes;
    int64_t tokens;
    std::list<Queue>::iterator queue;
  };

  struct Queue {
    HeadConfig config;
    std::list<Entry> entries;  // never empty
    size_t bytes = 0;
    int64_t tokens = 0;
  };

  bool FillsBatch(const Queue& queue) const;
  absl::Time ReadyTime(const Queue& queue) const;
  // Removes the entry everywhere, and its queue when that becomes empty.
  std::unique_ptr<AttentionWork> Extract(std::list<Entry>::iterator entry);

  const Scheduler::Options options_;
  WorkId last_id_ = 0;
  size_t bytes_ = 0;
  std::list<Queue> turns_;  // whose turn is next comes first
  absl::flat_hash_map<HeadConfig, std::list<Queue>::iterator> by_config_;
  absl::flat_hash_map<WorkId, std::list<Entry>::iterator> by_id_;
  absl::btree_set<std::pair<absl::Time, WorkId>> deadlines_;  // finite ones
};

}  // namespace attention

#endif  // ATTENTION_SERVER_SCHEDULING_BATCH_QUEUES_H_
