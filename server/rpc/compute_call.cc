#include "server/rpc/compute_call.h"

#include <utility>

namespace attention {

absl::StatusOr<Works> ComputeCall::Decode(const WireMessage& message,
                                          const std::string&) {
  MessageArena arena;
  absl::StatusOr<ScannedRequest> scanned =
      ScanRequest(message.fragments, arena);
  if (!scanned.ok()) return scanned.status();
  return computation_.Decode(*std::move(scanned), environment());
}

absl::StatusOr<grpc::ByteBuffer> ComputeCall::Encode(
    WorkGroup::Results& results) {
  return computation_.Encode(results, std::nullopt, environment());
}

}  // namespace attention
