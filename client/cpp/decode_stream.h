// The DecodeStream of this client.
#ifndef ATTENTION_CLIENT_CPP_DECODE_STREAM_H_
#define ATTENTION_CLIENT_CPP_DECODE_STREAM_H_

#include <cstdint>
#include <deque>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/cpp/client_stream.h"
#include "client/cpp/session_caller.h"
#include "client/cpp/session_messages.h"
#include "client/cpp/sessions.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/status.h"

namespace attention {

class DecodeStreamImpl final : public DecodeStream, private ClientStream {
 public:
  // Begins with the first message. `timeout` may be infinite.
  DecodeStreamImpl(const SessionCaller& caller, absl::Duration timeout);
  ~DecodeStreamImpl() override;

  void Send(const DecodeRequest& request, Done done) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Close() override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Pending {
    DecodeShape shape;
    Done done;
  };

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  bool OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone(const grpc::Status& status) override ABSL_LOCKS_EXCLUDED(mutex_);

  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes the answer that was read to its caller.
  absl::Status Deliver() ABSL_LOCKS_EXCLUDED(mutex_);
  const SessionCaller caller_;
  grpc::ClientContext context_;
  grpc::ByteBuffer read_;

  absl::Mutex mutex_;
  std::deque<grpc::ByteBuffer> writes_ ABSL_GUARDED_BY(mutex_);  // first: going
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;  // no more will be sent
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;   // and the server knows
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;   // no more will be read
  int64_t next_tag_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<int64_t, Pending> pending_ ABSL_GUARDED_BY(mutex_);
  absl::Status error_ ABSL_GUARDED_BY(mutex_);   // of the server's messages
  bool done_ ABSL_GUARDED_BY(mutex_) = false;    // callbacks included
  absl::Status status_ ABSL_GUARDED_BY(mutex_);  // once the stream has ended
};

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_DECODE_STREAM_H_
