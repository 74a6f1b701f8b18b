#include "server/rpc/compute_call.h"

#include <utility>

#include "server/rpc/region_references.h"
#include "server/rpc/request_decoder.h"

namespace attention {

absl::StatusOr<Works> ComputeCall::Decode(const WireMessage& message,
                                          const std::string&) {
  MessageArena arena;
  absl::StatusOr<ScannedRequest> scanned =
      ScanRequest(message.fragments, arena);
  if (!scanned.ok()) return scanned.status();
  const absl::Status resolved =
      ResolveReferences(environment().regions, *scanned);
  if (!resolved.ok()) return resolved;
  environment().metrics->SharedMemoryBytesReceived(ReferencedBytes(*scanned));
  absl::StatusOr<DecodedRequest> decoded =
      DecodeRequest(*std::move(scanned), environment().limits);
  if (!decoded.ok()) return decoded.status();
  plan_ = std::move(decoded->plan);
  Works works;
  works.push_back(std::move(decoded->work));
  return works;
}

absl::StatusOr<grpc::ByteBuffer> ComputeCall::Encode(
    WorkGroup::Results& results) {
  absl::StatusOr<WorkResult>& result = results.front();
  if (!result.ok()) return result.status();
  const absl::StatusOr<size_t> written = WriteToTargets(plan_, *result);
  if (!written.ok()) return written.status();
  environment().metrics->SharedMemoryBytesSent(*written);
  return EncodeResponse(plan_, *std::move(result), environment().keep_alive);
}

}  // namespace attention
