// One ComputeAttention call, from its arrival to its answer.
//
// Lives until gRPC is done with the call and the scheduler has called back,
// whichever comes last. Never blocks: it runs on gRPC's and the devices'
// threads.
#ifndef ATTENTION_SERVER_RPC_COMPUTE_CALL_H_
#define ATTENTION_SERVER_RPC_COMPUTE_CALL_H_

#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/engine/attention_work.h"
#include "server/rpc/call_support.h"
#include "server/rpc/response_encoder.h"
#include "server/scheduling/scheduler.h"

namespace attention {

class ComputeCall final : public grpc::ServerUnaryReactor {
 public:
  // Takes the request's memory over, so that it can be released as soon as a
  // device has read it instead of when the call ends. The result owns itself.
  static ComputeCall* Start(grpc::CallbackServerContext* context,
                            grpc::ByteBuffer request, grpc::ByteBuffer* response,
                            CallEnvironment* environment);

  ComputeCall(grpc::CallbackServerContext* context, grpc::ByteBuffer* response,
              CallEnvironment* environment);

 private:
  void Begin(grpc::ByteBuffer request);
  absl::Status Enqueue(std::unique_ptr<AttentionWork> work);
  void Complete(absl::StatusOr<WorkResult> result);
  void Answer(WorkResult result);
  void Refuse(const absl::Status& status);
  void End(const grpc::Status& status, absl::StatusCode code);

  void OnCancel() override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone() override;

  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const response_;
  CallEnvironment* const environment_;
  const absl::Time start_time_;
  std::shared_ptr<ComputeCall> self_;  // until OnDone

  // Set by Begin, before anyone else can see the call.
  std::optional<HeadConfig> config_;
  ResponsePlan plan_;

  // The caller may go away before Enqueue has returned the id to cancel.
  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<WorkId> work_id_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_COMPUTE_CALL_H_
