#include "client/loadtest/server_caller.h"

#include <utility>

namespace attention::loadtest {

ServerCaller::ServerCaller(Client* client, const Options& options)
    : client_(client), options_(options), streams_(options.stream_count) {}

void ServerCaller::Call(const AttentionRequest& request, Client::Done done) {
  if (options_.stream_count > 0) {
    NextStream()->Send(request, std::move(done));
  } else {
    client_->ComputeAsync(request, std::move(done),
                          {.transport = options_.transport});
  }
}

ServerCaller::Stream ServerCaller::NextStream() {
  const uint64_t turn = next_.fetch_add(1, std::memory_order_relaxed);
  Stream ended;  // destroyed without the lock, as it waits for callbacks
  absl::MutexLock lock(&mutex_);
  Stream& stream = streams_[turn % streams_.size()];
  if (stream == nullptr || !stream->IsOpen()) {
    ended = std::exchange(stream, client_->OpenComputeStream());
  }
  return stream;
}

}  // namespace attention::loadtest
