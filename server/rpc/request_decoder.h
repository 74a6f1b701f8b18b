// Turns a request into work: every check on what a caller sent is here.
//
// Nothing in a request is trusted. Sizes are multiplied with overflow checks,
// every element that the computation will read lies inside its payload, and
// what the answer will need is bounded before anything is computed. Messages
// name the field, its value and the bound.
#ifndef ATTENTION_SERVER_RPC_REQUEST_DECODER_H_
#define ATTENTION_SERVER_RPC_REQUEST_DECODER_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "server/engine/input_upload.h"
#include "server/rpc/request_scanner.h"
#include "server/rpc/work_builder.h"

namespace attention {

// Most sequences in one request: each costs the server some hundred bytes,
// however few bytes it took in the message.
inline constexpr int64_t kMaxRequestSequences = int64_t{1} << 18;

// All but the payloads, which need not be there yet: `sizes` are theirs. Errors:
//   INVALID_ARGUMENT    INVALID_REQUEST or UNSUPPORTED
//   RESOURCE_EXHAUSTED  REQUEST_TOO_LARGE: the answer, the sequences or the
//                       computation exceed the limits
absl::StatusOr<DecodedRequest> DecodeMetadata(
    const v1::ComputeAttentionRequest& metadata, const InputSizes& sizes,
    ResultTargets targets, const RequestLimits& limits);

// As above, with the payloads.
absl::StatusOr<DecodedRequest> DecodeRequest(ScannedRequest request,
                                             const RequestLimits& limits);

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_REQUEST_DECODER_H_
