// Calls one server.
#ifndef ATTENTION_CLIENT_LOADTEST_SERVER_CALLER_H_
#define ATTENTION_CLIENT_LOADTEST_SERVER_CALLER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/cpp/attention_client.h"
#include "client/cpp/compute_stream.h"

namespace attention::loadtest {

// Thread-safe. Destroying it waits for messages of streams that are under way.
class ServerCaller {
 public:
  struct Options {
    Transport transport = Transport::kMessage;  // of calls
    // Instead of calls, messages of so many open streams, which take turns. One
    // that has ended is opened anew.
    int stream_count = 0;
  };

  // The client outlives it.
  ServerCaller(Client* client, const Options& options);

  Client& client() const { return *client_; }

  // As RequestSender::Send, but not within a callback.
  void Call(const AttentionRequest& request, Client::Done done);

 private:
  using Stream = std::shared_ptr<ComputeStream>;

  Stream NextStream() ABSL_LOCKS_EXCLUDED(mutex_);

  Client* const client_;
  const Options options_;
  std::atomic<uint64_t> next_{0};
  absl::Mutex mutex_;
  std::vector<Stream> streams_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attention::loadtest

#endif  // ATTENTION_CLIENT_LOADTEST_SERVER_CALLER_H_
