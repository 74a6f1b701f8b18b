#include "server/rpc/compute_message.h"

#include <utility>

#include "server/rpc/response_parts.h"

namespace attention {

absl::Status ComputeMessage::Decode(const WireMessage& message, Caller&,
                                    int64_t& tag,
                                    absl::StatusOr<Works>& works) {
  MessageArena arena;
  absl::StatusOr<ScannedStreamCompute> scanned =
      ScanStreamComputeRequest(message.fragments, arena);
  if (!scanned.ok()) return scanned.status();
  tag = scanned->tag;
  works = computation_.Decode(std::move(scanned->request), environment());
  return absl::OkStatus();
}

absl::StatusOr<grpc::ByteBuffer> ComputeMessage::Encode(
    WorkGroup::Results& results, int64_t tag) {
  return computation_.Encode(results, tag, environment());
}

grpc::ByteBuffer ComputeMessage::EncodeError(
    const absl::Status& status, std::optional<absl::Duration> retry_delay,
    int64_t tag) {
  return EncodeFailure<v1::StreamComputeAttentionResponse>(status, retry_delay,
                                                           tag);
}

}  // namespace attention
