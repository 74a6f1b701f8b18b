// One ComputeAttention call.
#ifndef ATTENTION_SERVER_RPC_COMPUTE_CALL_H_
#define ATTENTION_SERVER_RPC_COMPUTE_CALL_H_

#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/rpc/computation.h"
#include "server/rpc/unary_call.h"

namespace attention {

class ComputeCall final : public UnaryCall {
 private:
  absl::StatusOr<Works> Decode(const WireMessage& message,
                               const std::string& tenant) override;
  absl::StatusOr<grpc::ByteBuffer> Encode(WorkGroup::Results& results) override;
  void Release() override { computation_.Release(); }

  Computation computation_;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_COMPUTE_CALL_H_
