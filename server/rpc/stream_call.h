// One StreamAttention call, from its arrival to its end.
//
//   receiving   the start and chunks, one message at a time: each goes to the
//               device's memory before the next one is read, so that a stream
//               holds no more than one beside what it has reserved
//   computing   the work is the scheduler's; nothing is read
//   sending     the result, one message at a time
//   ended       by success, error, cancellation, another stream that takes the
//               upload over, or because the caller sends nothing for too long
//
// Lives until gRPC is done with the call and the scheduler has called back,
// whichever comes last.
#ifndef ATTENTION_SERVER_RPC_STREAM_CALL_H_
#define ATTENTION_SERVER_RPC_STREAM_CALL_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/status.h"
#include "server/engine/attention_work.h"
#include "server/rpc/call_support.h"
#include "server/rpc/request_scanner.h"
#include "server/rpc/result_stream.h"
#include "server/rpc/stream_start.h"
#include "server/rpc/stream_table.h"
#include "server/transport/server_call.h"
#include "server/uploads/upload_registry.h"

namespace attention {

// Most bytes of one message's data.
inline constexpr size_t kMaxChunkBytes = size_t{16} << 20;

class StreamCall final : public ServerCall::Handler,
                         public UploadStream,
                         public TrackedStream,
                         public std::enable_shared_from_this<StreamCall> {
 public:
  // Makes one that owns itself.
  static void Start(ServerCall* call, CallEnvironment* environment,
                    StreamTable* table);

  StreamCall(ServerCall* call, CallEnvironment* environment,
             StreamTable* table);

  // Ends the call if it is the caller's turn and has been since `limit`.
  void EndIfIdleSince(absl::Time limit) override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  enum class Stage { kReceiving, kComputing, kSending };

  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnCancel() override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone() override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnTakenOver() override ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Status Take(const ScannedStreamRequest& message);
  absl::Status Begin(const v1::StreamAttentionStart& start, std::string tenant)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Write(const ScannedStreamRequest& message)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Enqueue() ABSL_LOCKS_EXCLUDED(mutex_);
  void Complete(absl::StatusOr<WorkResult> result) ABSL_LOCKS_EXCLUDED(mutex_);

  // The first call counts.
  void End(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  // Starts the next write, or the end, unless a write is under way. No
  // operation calls back in place.
  void AdvanceLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Touch() ABSL_LOCKS_EXCLUDED(mutex_);

  ServerCall* const call_;
  CallEnvironment* const environment_;
  StreamTable* const table_;
  const absl::Time start_time_;
  std::shared_ptr<StreamCall> self_;  // until OnDone
  CallGate::Pass pass_;               // until OnDone

  // Of the reading side, which is one thread at a time.
  grpc::ByteBuffer read_;
  std::unique_ptr<AttentionWork> work_;  // from the start to Enqueue
  ResponsePlan plan_;
  absl::Duration lease_;
  size_t reported_bytes_ = 0;

  absl::Mutex mutex_;
  Stage stage_ ABSL_GUARDED_BY(mutex_) = Stage::kReceiving;
  absl::Time last_move_ ABSL_GUARDED_BY(mutex_);
  std::optional<HeadConfig> config_ ABSL_GUARDED_BY(mutex_);
  // From the start to the end; of an answered call to OnDone.
  std::shared_ptr<UploadRegistry::Hold> hold_ ABSL_GUARDED_BY(mutex_);
  std::optional<WorkId> work_id_ ABSL_GUARDED_BY(mutex_);
  bool state_wanted_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<ResultStream> result_ ABSL_GUARDED_BY(mutex_);
  absl::Time send_start_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> final_status_ ABSL_GUARDED_BY(mutex_);
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_STREAM_CALL_H_
