// One StreamAppendKeysValues call: chunks of keys and values are queued while
// later ones arrive, a few at a time.
//
// The first error, in the order of the chunks, is the call's; what waits then
// is taken back. Lives until gRPC is done with the call and the scheduler with
// its works.
#ifndef ATTENTION_SERVER_RPC_APPEND_STREAM_H_
#define ATTENTION_SERVER_RPC_APPEND_STREAM_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/support/byte_buffer.h"
#include "kernels/attention_params.h"
#include "server/rpc/call_support.h"
#include "server/rpc/stream_table.h"
#include "server/rpc/work_group.h"
#include "server/transport/server_call.h"

namespace attention {

class AppendStream final : public ServerCall::Handler,
                           public TrackedStream,
                           public std::enable_shared_from_this<AppendStream> {
 public:
  // Makes one that owns itself.
  static void Start(ServerCall* call, CallEnvironment* environment,
                    StreamTable* table);

  AppendStream(ServerCall* call, CallEnvironment* environment,
               StreamTable* table);

  // When the caller has sent nothing for so long, and nothing is under way.
  void EndIfIdleSince(absl::Time limit) override ABSL_LOCKS_EXCLUDED(mutex_);
  // Unless the caller has sent everything: what has arrived is appended.
  void EndForDrain() override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class Chunk;

  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnCancel() override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone() override ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Status Take() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckFirst(const v1::StreamAppendKeysValuesRequest& metadata);
  void OnChunkDone(int64_t index, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Takes no further chunks, and takes back those that wait. Of several errors
  // that of the earliest chunk counts.
  void Fail(int64_t index, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Starts the next read, or ends the call when nothing is under way.
  void Advance() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<grpc::ByteBuffer> Answer();
  void End(const absl::Status& error);

  ServerCall* const call_;
  CallEnvironment* const environment_;
  StreamTable* const table_;
  const absl::Time start_time_;
  std::shared_ptr<AppendStream> self_;  // until OnDone
  CallGate::Pass pass_;                 // until OnDone

  // Of the reading side, which is one thread at a time.
  grpc::ByteBuffer read_;
  std::optional<std::string> tenant_;
  std::string session_;
  int32_t priority_ = 0;
  int64_t taken_ = 0;  // chunks

  absl::Mutex mutex_;
  absl::btree_map<int64_t, std::shared_ptr<Chunk>> chunks_
      ABSL_GUARDED_BY(mutex_);  // that are under way
  std::optional<HeadConfig> config_ ABSL_GUARDED_BY(mutex_);
  absl::Time last_move_ ABSL_GUARDED_BY(mutex_);
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;  // the caller's side
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  int64_t error_index_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_APPEND_STREAM_H_
