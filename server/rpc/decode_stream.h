// One StreamDecode call: messages are taken as long as not too many are under
// way, queued in the order in which they came, and answered as their results
// come, those with a common session in order.
//
// It has ended when the caller has closed its side and everything is answered;
// at once when the caller goes away or takes no answers; after what it has
// taken is answered when a message makes no sense or the server is going away.
//
// Lives until gRPC is done with the call and every message has its answer.
#ifndef ATTENTION_SERVER_RPC_DECODE_STREAM_H_
#define ATTENTION_SERVER_RPC_DECODE_STREAM_H_

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/rpc/call_support.h"
#include "server/rpc/decode_message.h"
#include "server/rpc/stream_table.h"
#include "server/transport/server_call.h"

namespace attention {

// Messages of one stream that have not been answered, at most.
inline constexpr int kMaxPipelinedMessages = 64;

class DecodeStream final : public ServerCall::Handler,
                           public DecodeMessage::Stream,
                           public TrackedStream,
                           public std::enable_shared_from_this<DecodeStream> {
 public:
  // Makes one that owns itself.
  static void Start(ServerCall* call, CallEnvironment* environment,
                    StreamTable* table);

  DecodeStream(ServerCall* call, CallEnvironment* environment,
               StreamTable* table);

  // When the caller has not taken an answer for so long.
  void EndIfIdleSince(absl::Time limit) override ABSL_LOCKS_EXCLUDED(mutex_);
  void EndForDrain() override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Message = std::shared_ptr<DecodeMessage>;

  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnCancel() override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone() override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnAnswered(const Message& message) override ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Status Take() ABSL_LOCKS_EXCLUDED(mutex_);
  // False when the caller is gone.
  bool Admit(const Message& message) ABSL_LOCKS_EXCLUDED(mutex_);
  void ReleaseLocked(DecodeMessage* message)
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

  ServerCall* const call_;
  CallEnvironment* const environment_;
  StreamTable* const table_;
  std::shared_ptr<DecodeStream> self_;  // until OnDone
  CallGate::Pass pass_;                 // until OnDone

  // Of the reading side, which is one thread at a time.
  grpc::ByteBuffer read_;
  std::optional<std::string> tenant_;
  std::optional<int32_t> priority_;

  absl::Mutex mutex_;
  // All that have been taken and are not on their way to the caller.
  absl::flat_hash_map<DecodeMessage*, Message> pending_ ABSL_GUARDED_BY(mutex_);
  // The last pending message of each session.
  absl::flat_hash_map<std::string, DecodeMessage*> last_
      ABSL_GUARDED_BY(mutex_);
  std::deque<grpc::ByteBuffer> answers_ ABSL_GUARDED_BY(mutex_);
  absl::Time write_start_ ABSL_GUARDED_BY(mutex_);
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  // Set when no message is taken any more.
  std::optional<absl::Status> end_status_ ABSL_GUARDED_BY(mutex_);
  bool abandoned_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_DECODE_STREAM_H_
