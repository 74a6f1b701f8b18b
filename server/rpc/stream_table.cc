#include "server/rpc/stream_table.h"

#include <utility>

namespace attention {

void StreamTable::Add(const std::shared_ptr<TrackedStream>& stream) {
  bool draining;
  {
    absl::MutexLock lock(&mutex_);
    streams_[stream.get()] = stream;
    draining = draining_;
  }
  if (draining) stream->EndForDrain();
}

void StreamTable::Remove(TrackedStream* stream) {
  absl::MutexLock lock(&mutex_);
  streams_.erase(stream);
}

std::vector<std::shared_ptr<TrackedStream>> StreamTable::Alive() {
  std::vector<std::shared_ptr<TrackedStream>> alive;
  alive.reserve(streams_.size());
  for (const auto& [pointer, stream] : streams_) {
    if (auto held = stream.lock(); held != nullptr) {
      alive.push_back(std::move(held));
    }
  }
  return alive;
}

void StreamTable::EndIdleSince(absl::Time limit) {
  std::vector<std::shared_ptr<TrackedStream>> streams;
  {
    absl::MutexLock lock(&mutex_);
    streams = Alive();
  }
  for (const auto& stream : streams) stream->EndIfIdleSince(limit);
}

void StreamTable::Drain() {
  std::vector<std::shared_ptr<TrackedStream>> streams;
  {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
    streams = Alive();
  }
  for (const auto& stream : streams) stream->EndForDrain();
}

}  // namespace attention
