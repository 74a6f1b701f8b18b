// One stream of a streamed call.
#ifndef ATTENTION_CLIENT_CPP_STREAM_ATTEMPT_H_
#define ATTENTION_CLIENT_CPP_STREAM_ATTEMPT_H_

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/cpp/attention_client.h"
#include "client/cpp/client_stream.h"
#include "client/cpp/retry.h"
#include "client/cpp/streamed_answer.h"
#include "client/cpp/upload_plan.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/status.h"

namespace attention {

// Counts the slices that refer to the caller's memory. Thread-safe; lives until
// the count is 0.
class LentMemory {
 public:
  // A slice of memory that stays until it is gone.
  grpc::Slice Lend(const char* data, size_t size) ABSL_LOCKS_EXCLUDED(mutex_);

  // False if nothing is lent. Otherwise calls `returned` once where the last
  // slice is destroyed, which is anywhere in gRPC.
  bool WhenReturned(std::function<void()> returned) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  static void Return(void* memory);

  absl::Mutex mutex_;
  int lent_ ABSL_GUARDED_BY(mutex_) = 0;
  std::function<void()> returned_ ABSL_GUARDED_BY(mutex_);
};

// Sends the start and, as far as the server does not have them, the tensors;
// puts the answer together.
class StreamAttempt final : private ClientStream {
 public:
  struct Outcome {
    absl::StatusOr<AttentionResult> result;
    std::optional<Pushback> pushback;
    size_t received_bytes = 0;  // that the server had at the beginning
  };
  using Done = absl::AnyInvocable<void(Outcome)>;

  // Everything outlives the attempt. A resumed one waits to hear what the
  // server has. `done` is called exactly once and may destroy the attempt.
  StreamAttempt(const grpc::ByteBuffer& start, UploadPlan plan, bool resumed,
                StreamedAnswer answer, LentMemory* memory, Done done);
  ~StreamAttempt() override = default;

  void Begin(grpc::GenericStub& stub, absl::Duration timeout,
             const std::string& tenant, EventLoop& loop);
  void Cancel() { context_.TryCancel(); }

 private:
  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  bool OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone(const grpc::Status& status) override;

  void SendNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status TakeMessage() ABSL_LOCKS_EXCLUDED(mutex_);

  grpc::ByteBuffer start_;  // until Begin
  grpc::ClientContext context_;
  LentMemory& memory_;
  Done done_;

  // Of the reading side.
  grpc::ByteBuffer read_;
  StreamedAnswer answer_;
  absl::Status error_;  // of the server's messages

  absl::Mutex mutex_;
  UploadPlan plan_ ABSL_GUARDED_BY(mutex_);
  bool may_send_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = true;  // at first the start
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_STREAM_ATTEMPT_H_
