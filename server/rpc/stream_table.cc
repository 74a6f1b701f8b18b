#include "server/rpc/stream_table.h"

#include <vector>

#include "server/rpc/stream_call.h"

namespace attention {

void StreamTable::Add(const std::shared_ptr<StreamCall>& call) {
  absl::MutexLock lock(&mutex_);
  calls_[call.get()] = call;
}

void StreamTable::Remove(StreamCall* call) {
  absl::MutexLock lock(&mutex_);
  calls_.erase(call);
}

void StreamTable::EndIdleSince(absl::Time limit) {
  std::vector<std::shared_ptr<StreamCall>> calls;
  {
    absl::MutexLock lock(&mutex_);
    calls.reserve(calls_.size());
    for (const auto& [pointer, call] : calls_) {
      if (auto alive = call.lock(); alive != nullptr) {
        calls.push_back(std::move(alive));
      }
    }
  }
  for (const auto& call : calls) call->EndIfIdleSince(limit);
}

}  // namespace attention
