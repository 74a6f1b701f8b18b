// A stream whose messages do not wait for each other: answers are told apart by
// their tags.
#ifndef ATTENTION_CLIENT_CPP_TAGGED_STREAM_H_
#define ATTENTION_CLIENT_CPP_TAGGED_STREAM_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/cpp/call_runner.h"
#include "client/cpp/client_stream.h"
#include "event_loop/event_loop.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/status.h"

namespace attention {

// Response is a message with a `tag` and an `error`, v1::StreamDecodeResponse
// or v1::StreamComputeAttentionResponse. Thread-safe.
template <typename Response>
class TaggedStream final : private ClientStream {
 public:
  // Gets the answer, or its error, or why there is none.
  using Done = absl::AnyInvocable<void(absl::StatusOr<Response>)>;
  using MakeMessage = absl::FunctionRef<absl::StatusOr<grpc::ByteBuffer>()>;

  // Begins with the first message. `timeout` may be infinite. `runner` outlives
  // the stream.
  TaggedStream(CallRunner& runner, const std::string& method,
               absl::Duration timeout);
  // Cancels what is under way and waits until each callback has returned.
  ~TaggedStream() override;

  // For the next message.
  int64_t NewTag() { return next_tag_.fetch_add(1, std::memory_order_relaxed); }

  // Calls `make_message` unless the stream has ended, for one message after the
  // other, in the order in which they are sent. `done` is called exactly once,
  // on a thread of the loop, or before this returns: then with the error of
  // `make_message` or of the stream.
  void Send(int64_t tag, MakeMessage make_message, Done done)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // False once it has been closed or has broken.
  bool IsOpen() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits for every answer, and ends the stream. OK unless it broke.
  absl::Status Close() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  bool OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone(const grpc::Status& status) override ABSL_LOCKS_EXCLUDED(mutex_);

  // Why no message is taken.
  absl::Status Refusal() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes the answer that was read to its caller.
  absl::Status Deliver() ABSL_LOCKS_EXCLUDED(mutex_);

  grpc::ClientContext context_;
  grpc::ByteBuffer read_;
  std::atomic<int64_t> next_tag_ = 0;

  mutable absl::Mutex mutex_;
  std::optional<StreamLoad> load_ ABSL_GUARDED_BY(mutex_);  // until OnDone
  std::deque<grpc::ByteBuffer> writes_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;  // no more will be sent
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;   // and the server knows
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;   // no more will be read
  absl::flat_hash_map<int64_t, Done> pending_
      ABSL_GUARDED_BY(mutex_);                   // by tag
  absl::Status error_ ABSL_GUARDED_BY(mutex_);   // of the server's messages
  bool done_ ABSL_GUARDED_BY(mutex_) = false;    // callbacks included
  absl::Status status_ ABSL_GUARDED_BY(mutex_);  // once the stream has ended
};

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_TAGGED_STREAM_H_
