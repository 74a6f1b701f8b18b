// Runs unary calls over a pool of channels, with retries.
//
// gRPC's own retries stop at its retry buffer of 256 KiB and would not cover
// tensors. Here the serialised request stays referenced (not copied) until the
// call is over.
#ifndef ATTENTION_CLIENT_CPP_CALL_RUNNER_H_
#define ATTENTION_CLIENT_CPP_CALL_RUNNER_H_

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/cpp/retry.h"
#include "client/cpp/stub_pool.h"
#include "event_loop/event_loops.h"
#include "grpcpp/channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/status.h"

namespace attention {

// Time as calls see it; replaced in tests. Thread-safe.
class CallClock {
 public:
  // A callback on its way. Destroying it does not cancel.
  class Wait {
   public:
    virtual ~Wait() = default;
    // Lets the callback run at once, if it has not run yet.
    virtual void Cancel() = 0;
  };

  virtual ~CallClock() = default;
  virtual absl::Time Now() = 0;
  // Runs `callback` once, `delay` from now, never within RunAfter itself.
  virtual std::unique_ptr<Wait> RunAfter(absl::Duration delay,
                                         std::function<void()> callback) = 0;

  // The machine's time; callbacks run on gRPC's threads.
  static CallClock* Real();
};

// The server's code and message. Each of its details becomes a payload under
// the detail's type URL.
absl::Status ToAbslStatus(const grpc::Status& status);

// Thread-safe.
class CallRunner {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<grpc::ByteBuffer>)>;

  struct Call {
    std::string method;  // "/package.Service/Method"
    grpc::ByteBuffer request;
    absl::Duration timeout;  // all attempts together
    bool retry = true;
  };

  // Attempts take turns on `channels`. Calls say that they are `tenant`'s,
  // unless it is empty. `clock` and `loops` outlive the runner.
  CallRunner(const std::vector<std::shared_ptr<grpc::Channel>>& channels,
             RetryPolicy policy, CallClock* clock, const EventLoops& loops,
             std::string tenant);

  // Cancels calls that are under way and waits for their callbacks.
  ~CallRunner() ABSL_LOCKS_EXCLUDED(mutex_);

  // Calls `done` exactly once, on a thread of a loop or of gRPC's timer.
  void Start(Call call, Done done) ABSL_LOCKS_EXCLUDED(mutex_);

  // As Start, but waits.
  absl::StatusOr<grpc::ByteBuffer> Run(Call call) ABSL_LOCKS_EXCLUDED(mutex_);

  // For streams: the channel whose turn it is, and how attempts are made.
  const StubPool::Entry& NextStub() { return stubs_.Next(); }
  const RetryPolicy& policy() const { return policy_; }
  CallClock& clock() const { return *clock_; }
  const std::string& tenant() const { return tenant_; }

 private:
  class ActiveCall;

  void Remove(ActiveCall* call) ABSL_LOCKS_EXCLUDED(mutex_);

  const RetryPolicy policy_;
  CallClock* const clock_;
  const std::string tenant_;
  StubPool stubs_;

  absl::Mutex mutex_;
  absl::flat_hash_set<ActiveCall*> active_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_CALL_RUNNER_H_
