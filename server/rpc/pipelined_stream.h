// One call whose messages do not wait for each other: StreamComputeAttention or
// StreamDecode. Messages are taken as long as not too many are under way,
// queued in the order in which they came unless they may be overtaken, and
// answered as their results come, those with a common session in order.
//
// It has ended when the caller has closed its side and everything is answered;
// at once when the caller goes away or takes no answers; after what it has
// taken is answered when a message makes no sense or the server is going away.
//
// Lives until gRPC is done with the call and every message has its answer.
#ifndef ATTENTION_SERVER_RPC_PIPELINED_STREAM_H_
#define ATTENTION_SERVER_RPC_PIPELINED_STREAM_H_

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/rpc/call_support.h"
#include "server/rpc/pipelined_message.h"
#include "server/rpc/stream_table.h"
#include "server/transport/server_call.h"

namespace attention {

// Messages of one stream that have not been answered, at most.
inline constexpr int kMaxPipelinedMessages = 64;
// What they and their answers move: while it is more, no further message is
// read. So a caller who sends and takes no answers does not fill the server's
// memory.
inline constexpr size_t kMaxPipelinedBytes = size_t{128} << 20;

class PipelinedStream final
    : public ServerCall::Handler,
      public PipelinedMessage::Stream,
      public TrackedStream,
      public std::enable_shared_from_this<PipelinedStream> {
 public:
  // Makes one of Messages, which owns itself.
  template <typename Message>
  static void Start(ServerCall* call, CallEnvironment* environment,
                    StreamTable* table) {
    const MakeMessage make = [](auto stream, CallEnvironment* shared) {
      return MessagePointer(
          std::make_shared<Message>(std::move(stream), shared));
    };
    Begin(std::make_shared<PipelinedStream>(make, call, environment, table));
  }

  using MessagePointer = std::shared_ptr<PipelinedMessage>;
  using MakeMessage =
      MessagePointer (*)(std::shared_ptr<PipelinedMessage::Stream> stream,
                         CallEnvironment* environment);

  PipelinedStream(MakeMessage make_message, ServerCall* call,
                  CallEnvironment* environment, StreamTable* table);

  void EndForDrain() override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  static void Begin(const std::shared_ptr<PipelinedStream>& stream);

  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnCancel() override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone() override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnAnswered(const MessagePointer& message) override
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Starts the message that was read and goes on reading, or returns what to
  // end the stream with.
  absl::Status Take() ABSL_LOCKS_EXCLUDED(mutex_);
  void ReadOn() ABSL_LOCKS_EXCLUDED(mutex_);
  // False when the caller is gone.
  bool Admit(const MessagePointer& message) ABSL_LOCKS_EXCLUDED(mutex_);
  void ReleaseLocked(PipelinedMessage* message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Takes no further messages and ends with `status` once those taken are
  // answered. The first one counts.
  void Close(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends at once: the caller is gone.
  void Abandon() ABSL_LOCKS_EXCLUDED(mutex_);
  // Starts what is to be done next: a read, a write, the end.
  void AdvanceLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FinishLocked(const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const MakeMessage make_message_;
  ServerCall* const call_;
  CallEnvironment* const environment_;
  StreamTable* const table_;
  std::shared_ptr<PipelinedStream> self_;  // until OnDone
  CallGate::Pass pass_;                    // until OnDone

  // Of the reading side, which is one thread at a time.
  grpc::ByteBuffer read_;
  std::optional<PipelinedMessage::Caller> caller_;

  absl::Mutex mutex_;
  std::optional<StreamLoad> load_ ABSL_GUARDED_BY(mutex_);  // until OnDone
  // All that have been taken and are not on their way to the caller.
  absl::flat_hash_map<PipelinedMessage*, MessagePointer> pending_
      ABSL_GUARDED_BY(mutex_);
  // The last pending message of each session.
  absl::flat_hash_map<std::string, PipelinedMessage*> last_
      ABSL_GUARDED_BY(mutex_);
  struct Answer {
    grpc::ByteBuffer buffer;
    size_t moved_bytes = 0;
  };
  std::deque<Answer> answers_ ABSL_GUARDED_BY(mutex_);
  // Of pending messages, answers and the answer that is being written.
  size_t moved_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t written_moved_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  // Set when no message is taken any more.
  std::optional<absl::Status> end_status_ ABSL_GUARDED_BY(mutex_);
  bool abandoned_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_PIPELINED_STREAM_H_
