#include "server/rpc/computation.h"

#include <utility>

#include "server/rpc/region_references.h"
#include "server/rpc/request_decoder.h"

namespace attention {

absl::StatusOr<Works> Computation::Decode(ScannedRequest request,
                                          CallEnvironment& environment) {
  const absl::Status resolved = ResolveReferences(environment.regions, request);
  if (!resolved.ok()) return resolved;
  environment.metrics->SharedMemoryBytesReceived(ReferencedBytes(request));
  absl::StatusOr<DecodedRequest> decoded =
      DecodeRequest(std::move(request), environment.limits);
  if (!decoded.ok()) return decoded.status();
  plan_ = std::move(decoded->plan);
  Works works;
  works.push_back(std::move(decoded->work));
  return works;
}

absl::StatusOr<grpc::ByteBuffer> Computation::Encode(
    WorkGroup::Results& results, std::optional<int64_t> tag,
    CallEnvironment& environment) {
  absl::StatusOr<WorkResult>& result = results.front();
  if (!result.ok()) return result.status();
  const absl::StatusOr<size_t> written = WriteToTargets(plan_, *result);
  if (!written.ok()) return written.status();
  environment.metrics->SharedMemoryBytesSent(*written);
  return EncodeResponse(plan_, *std::move(result), environment.keep_alive, tag);
}

}  // namespace attention
