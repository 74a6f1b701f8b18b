#include "server/scheduling/batch_queues.h"

#include <algorithm>
#include <iterator>

namespace attention {
namespace {

template <typename T>
bool Fits(T used, T more, T limit) {
  return used <= limit && more <= limit - used;
}

}  // namespace

WorkId BatchQueues::Push(std::unique_ptr<AttentionWork> work) {
  const WorkId id = ++last_id_;
  const HeadConfig config = work->config;
  const absl::Time deadline = work->deadline;
  const size_t bytes = TensorBytes(*work);
  const int64_t tokens = work->query_tokens();

  const auto [slot, is_new] = by_config_.try_emplace(config);
  if (is_new) {
    slot->second = turns_.insert(turns_.end(), Queue{.config = config});
  }
  const std::list<Queue>::iterator queue = slot->second;
  queue->entries.push_back({id, std::move(work), bytes, tokens, queue});
  queue->bytes += bytes;
  queue->tokens += tokens;
  bytes_ += bytes;
  by_id_.emplace(id, std::prev(queue->entries.end()));
  if (deadline != absl::InfiniteFuture()) deadlines_.emplace(deadline, id);
  return id;
}

std::unique_ptr<AttentionWork> BatchQueues::Extract(
    std::list<Entry>::iterator entry) {
  const std::list<Queue>::iterator queue = entry->queue;
  std::unique_ptr<AttentionWork> work = std::move(entry->work);
  deadlines_.erase({work->deadline, entry->id});
  by_id_.erase(entry->id);
  bytes_ -= entry->bytes;
  queue->bytes -= entry->bytes;
  queue->tokens -= entry->tokens;
  queue->entries.erase(entry);
  if (queue->entries.empty()) {
    by_config_.erase(queue->config);
    turns_.erase(queue);
  }
  return work;
}

std::unique_ptr<AttentionWork> BatchQueues::Remove(WorkId id) {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : Extract(it->second);
}

BatchQueues::Works BatchQueues::TakeExpired(absl::Time now) {
  Works expired;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    expired.push_back(Remove(deadlines_.begin()->second));
  }
  return expired;
}

BatchQueues::Works BatchQueues::TakeAll() {
  Works works;
  works.reserve(size());
  while (!turns_.empty()) {
    works.push_back(Extract(turns_.front().entries.begin()));
  }
  return works;
}

bool BatchQueues::FillsBatch(const Queue& queue) const {
  return queue.entries.size() >=
             static_cast<size_t>(options_.max_batch_requests) ||
         queue.bytes >= options_.max_batch_bytes ||
         queue.tokens >= options_.max_batch_tokens;
}

absl::Time BatchQueues::ReadyTime(const Queue& queue) const {
  if (FillsBatch(queue)) return absl::InfinitePast();
  return queue.entries.front().work->arrival_time + options_.max_queue_delay;
}

std::unique_ptr<Batch> BatchQueues::TakeBatch(absl::Time now, bool draining) {
  auto queue = turns_.begin();
  while (queue != turns_.end() && !draining && ReadyTime(*queue) > now) {
    ++queue;
  }
  if (queue == turns_.end()) return nullptr;

  auto batch = std::make_unique<Batch>();
  batch->config = queue->config;
  batch->start_time = now;
  if (FillsBatch(*queue)) {
    batch->flush_reason = FlushReason::kFull;
  } else if (draining) {
    batch->flush_reason = FlushReason::kDrain;
  } else if (options_.max_queue_delay > absl::ZeroDuration()) {
    batch->flush_reason = FlushReason::kDelay;
  } else {
    batch->flush_reason = FlushReason::kIdle;
  }

  // To the back of the line now: taking the last work erases the queue.
  turns_.splice(turns_.end(), turns_, queue);
  size_t bytes = 0;
  int64_t tokens = 0;
  size_t left = queue->entries.size();
  do {
    const auto entry = queue->entries.begin();
    bytes += entry->bytes;
    tokens += entry->tokens;
    batch->works.push_back(Extract(entry));
    --left;
  } while (
      left > 0 &&
      batch->works.size() < static_cast<size_t>(options_.max_batch_requests) &&
      Fits(bytes, queue->entries.front().bytes, options_.max_batch_bytes) &&
      Fits(tokens, queue->entries.front().tokens, options_.max_batch_tokens));
  return batch;
}

absl::Time BatchQueues::EarliestDeadline() const {
  return deadlines_.empty() ? absl::InfiniteFuture()
                            : deadlines_.begin()->first;
}

absl::Time BatchQueues::EarliestReady() const {
  absl::Time earliest = absl::InfiniteFuture();
  for (const Queue& queue : turns_) {
    earliest = std::min(earliest, ReadyTime(queue));
  }
  return earliest;
}

}  // namespace attention
