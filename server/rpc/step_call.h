// One call that uses sessions: AppendKeysValues, AttendSession or Decode.
#ifndef ATTENTION_SERVER_RPC_STEP_CALL_H_
#define ATTENTION_SERVER_RPC_STEP_CALL_H_

#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/rpc/step_decoder.h"
#include "server/rpc/unary_call.h"

namespace attention {

class StepCall final : public UnaryCall {
 public:
  enum class Kind { kAppend, kAttend, kDecode };

  explicit StepCall(Kind kind) : kind_(kind) {}

 private:
  absl::StatusOr<Works> Decode(const WireMessage& message,
                               const std::string& tenant) override;
  absl::StatusOr<grpc::ByteBuffer> Encode(WorkGroup::Results& results) override;

  const Kind kind_;
  StepsPlan plan_;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_STEP_CALL_H_
