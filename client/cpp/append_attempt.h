// One stream of StreamAppendKeysValues.
#ifndef ATTENTION_CLIENT_CPP_APPEND_ATTEMPT_H_
#define ATTENTION_CLIENT_CPP_APPEND_ATTEMPT_H_

#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "client/cpp/append_plan.h"
#include "client/cpp/client_stream.h"
#include "client/cpp/retry.h"
#include "client/cpp/session_caller.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/status.h"

namespace attention {

// Sends what a plan has left. Run it once.
class AppendAttempt final : private ClientStream {
 public:
  struct Outcome {
    absl::Status status;
    std::optional<Pushback> pushback;
  };

  // Everything outlives the attempt.
  AppendAttempt(const SessionCaller& caller, const std::string& session,
                const SessionOptions& options, AppendPlan plan);
  ~AppendAttempt() override = default;

  // Waits for the server's word.
  Outcome Run(absl::Duration timeout);

 private:
  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone(const grpc::Status& status) override;

  void SendNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const SessionCaller caller_;
  const std::string& session_;
  const SessionOptions& options_;
  grpc::ClientContext context_;
  grpc::ByteBuffer answer_;

  absl::Mutex mutex_;
  AppendPlan plan_ ABSL_GUARDED_BY(mutex_);
  absl::Status error_ ABSL_GUARDED_BY(mutex_);  // of this side

  absl::Notification done_;
  grpc::Status status_;  // once it is done
};

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_APPEND_ATTEMPT_H_
