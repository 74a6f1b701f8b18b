// One call that is computed, from its arrival to its answer; what it asks for and
// what it answers is its subclass's.
//
// Lives until gRPC is done with the call and the scheduler has called back,
// whichever comes last. Never blocks: it runs on gRPC's and the devices'
// threads.
#ifndef ATTENTION_SERVER_RPC_UNARY_CALL_H_
#define ATTENTION_SERVER_RPC_UNARY_CALL_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "kernels/attention_params.h"
#include "server/rpc/call_support.h"
#include "server/rpc/work_builder.h"
#include "server/rpc/work_group.h"

namespace attention {

class UnaryCall : public grpc::ServerUnaryReactor, public WorkGroup::Owner {
 public:
  // Makes a Call(arguments...). Takes the request's memory over, so that it can be
  // released as soon as a device has read it instead of when the call ends. The
  // result owns itself.
  template <typename Call, typename... Arguments>
  static UnaryCall* Start(grpc::CallbackServerContext* context,
                          const grpc::ByteBuffer* request,
                          grpc::ByteBuffer* response,
                          CallEnvironment* environment,
                          Arguments... arguments) {
    auto call = std::make_shared<Call>(arguments...);
    // The object is gRPC's own and not const.
    call->Begin(call, context, const_cast<grpc::ByteBuffer*>(request), response,
                environment);
    return call.get();  // gRPC calls OnDone only after the handler has returned
  }

 protected:
  UnaryCall();

  // Reads the message, whose memory its fragments are, and returns the works,
  // which keep it.
  virtual absl::StatusOr<Works> Decode(const WireMessage& message,
                                       const std::string& tenant) = 0;
  // The answer. Gives the memory of the results away.
  virtual absl::StatusOr<grpc::ByteBuffer> Encode(
      WorkGroup::Results& results) = 0;
  // Lets go of what is the caller's, right before it learns of the end.
  virtual void Release() {}

  CallEnvironment& environment() const { return *environment_; }

 private:
  void Begin(std::shared_ptr<UnaryCall> self,
             grpc::CallbackServerContext* context, grpc::ByteBuffer* request,
             grpc::ByteBuffer* response, CallEnvironment* environment);
  absl::StatusOr<Works> Receive(grpc::ByteBuffer* request);
  void Refuse(const absl::Status& status);
  void End(const grpc::Status& status, absl::StatusCode code);

  void OnWorksDone() override;
  void OnCancel() override;
  void OnDone() override;

  const absl::Time start_time_;
  // Set by Begin, before anyone else can see the call.
  grpc::CallbackServerContext* context_ = nullptr;
  grpc::ByteBuffer* response_ = nullptr;
  CallEnvironment* environment_ = nullptr;
  std::shared_ptr<UnaryCall> self_;  // until OnDone
  CallGate::Pass pass_;              // until OnDone
  std::optional<HeadConfig> config_;
  WorkGroup works_;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_UNARY_CALL_H_
