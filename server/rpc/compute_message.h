// One message of a StreamComputeAttention call.
#ifndef ATTENTION_SERVER_RPC_COMPUTE_MESSAGE_H_
#define ATTENTION_SERVER_RPC_COMPUTE_MESSAGE_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/rpc/computation.h"
#include "server/rpc/pipelined_message.h"

namespace attention {

class ComputeMessage final : public PipelinedMessage {
 public:
  using PipelinedMessage::PipelinedMessage;

 private:
  absl::Status Decode(const WireMessage& message, Caller& caller, int64_t& tag,
                      absl::StatusOr<Works>& works) override;
  absl::StatusOr<grpc::ByteBuffer> Encode(WorkGroup::Results& results,
                                          int64_t tag) override;
  grpc::ByteBuffer EncodeError(const absl::Status& status,
                               std::optional<absl::Duration> retry_delay,
                               int64_t tag) override;
  void Release() override { computation_.Release(); }

  Computation computation_;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_COMPUTE_MESSAGE_H_
