// One call that is computed, from its arrival to its answer; what it asks for
// and what it answers is its subclass's.
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
#include "grpcpp/support/byte_buffer.h"
#include "kernels/attention_params.h"
#include "server/rpc/call_support.h"
#include "server/rpc/work_builder.h"
#include "server/rpc/work_group.h"
#include "server/transport/server_call.h"

namespace attention {

class UnaryCall : public ServerCall::Handler, public WorkGroup::Owner {
 public:
  // Makes a Call(arguments...), which owns itself.
  template <typename Call, typename... Arguments>
  static void Start(ServerCall* call, CallEnvironment* environment,
                    Arguments... arguments) {
    auto handler = std::make_shared<Call>(arguments...);
    handler->Begin(handler, call, environment);
  }

 protected:
  UnaryCall() = default;

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
  void Begin(std::shared_ptr<UnaryCall> self, ServerCall* call,
             CallEnvironment* environment);
  absl::StatusOr<Works> Receive(bool has_message);
  void Refuse(const absl::Status& status);
  // What is due before the caller learns of the end.
  void BeforeEnd(absl::StatusCode code);

  void OnReadDone(bool ok) override;
  void OnWorksDone() override;
  void OnCancel() override;
  void OnDone() override;

  // Set by Begin, before anyone else can see the call.
  ServerCall* call_ = nullptr;
  CallEnvironment* environment_ = nullptr;
  std::shared_ptr<UnaryCall> self_;  // until OnDone
  CallGate::Pass pass_;              // until OnDone
  grpc::ByteBuffer request_;
  absl::Time start_time_;  // when the message was there
  std::optional<HeadConfig> config_;
  WorkGroup works_;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_UNARY_CALL_H_
