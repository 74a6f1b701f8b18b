// Runs streamed calls over a pool of channels, and goes on with them when their
// stream breaks.
//
// Chunks are sent from the caller's memory without a copy. So a call is over
// only when gRPC has let go of all of it, which after a deadline or a
// cancellation may take as long as a connection takes to notice that its peer
// is gone.
#ifndef ATTENTION_CLIENT_CPP_STREAM_RUNNER_H_
#define ATTENTION_CLIENT_CPP_STREAM_RUNNER_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/cpp/attention_client.h"
#include "client/cpp/call_runner.h"
#include "client/cpp/retry.h"
#include "grpcpp/channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"

namespace attention {

// Thread-safe.
class StreamRunner {
 public:
  // Attempts take turns on `channels`. One that the server has got further with
  // than the one before does not count towards the policy's limit. Calls say
  // that they are `tenant`'s, unless it is empty. `clock` and `loops` outlive
  // the runner.
  StreamRunner(const std::vector<std::shared_ptr<grpc::Channel>>& channels,
               RetryPolicy policy, CallClock* clock, const EventLoops& loops,
               std::string tenant);

  // Cancels calls that are under way and waits for their callbacks.
  ~StreamRunner() ABSL_LOCKS_EXCLUDED(mutex_);

  // Calls `done` exactly once, on a thread of a loop or of gRPC's timer. The
  // request's tensors and buffers live until then.
  void Start(const AttentionRequest& request, absl::Duration timeout,
             Client::Done done) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class ActiveStream;

  void Remove(ActiveStream* stream) ABSL_LOCKS_EXCLUDED(mutex_);

  const RetryPolicy policy_;
  CallClock* const clock_;
  const std::string tenant_;
  StubPool stubs_;

  absl::Mutex mutex_;
  absl::flat_hash_set<ActiveStream*> active_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_STREAM_RUNNER_H_
