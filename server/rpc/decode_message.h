// One message of a StreamDecode call.
#ifndef ATTENTION_SERVER_RPC_DECODE_MESSAGE_H_
#define ATTENTION_SERVER_RPC_DECODE_MESSAGE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/rpc/pipelined_message.h"
#include "server/rpc/step_decoder.h"

namespace attention {

class DecodeMessage final : public PipelinedMessage {
 public:
  using PipelinedMessage::PipelinedMessage;

  // Steps are queued in the order in which they came.
  bool may_be_overtaken() const override { return false; }
  absl::Span<const std::string> sessions() const override { return sessions_; }

 private:
  absl::Status Decode(const WireMessage& message, Caller& caller, int64_t& tag,
                      absl::StatusOr<Works>& works) override;
  absl::StatusOr<Works> DecodeRequest(ScannedDecode request, Caller& caller);
  absl::StatusOr<grpc::ByteBuffer> Encode(WorkGroup::Results& results,
                                          int64_t tag) override;
  grpc::ByteBuffer EncodeError(const absl::Status& status,
                               std::optional<absl::Duration> retry_delay,
                               int64_t tag) override;

  std::vector<std::string> sessions_;
  StepsPlan plan_;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_DECODE_MESSAGE_H_
