// Takes serialised requests apart without copying their tensors.
//
// Parsing the message with protobuf would copy every payload into a string.
// The scanner walks the fields instead: the few bytes of metadata are parsed as
// usual, the payloads stay where they arrived and are described by fragments.
// What it accepts, and what it means, is exactly what protobuf would: fields in
// any order, the last of several payloads wins, unknown fields are skipped.
#ifndef ATTENTION_SERVER_RPC_REQUEST_SCANNER_H_
#define ATTENTION_SERVER_RPC_REQUEST_SCANNER_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "attention/v1/attention.pb.h"
#include "server/engine/attention_work.h"
#include "server/rpc/message_arena.h"
#include "server/rpc/response_encoder.h"

namespace attention {

// Most bytes of metadata; far beyond what kMaxRequestSequences lengths need.
inline constexpr size_t kMaxMetadataBytes = size_t{8} << 20;

// A message with some of the tensors.
template <typename Message>
struct ScannedMessage {
  // Payload fields left empty. Lives as long as the arena given to the scanner.
  const Message* metadata = nullptr;
  Payload query;
  Payload key;
  Payload value;
};

struct ScannedRequest : ScannedMessage<v1::ComputeAttentionRequest> {
  // Not filled in by ScanRequest.
  ResultTargets targets;
  int required_device = kAnyDevice;
};

// A message of StreamComputeAttention.
struct ScannedStreamCompute {
  int64_t tag = 0;
  ScannedRequest request;
};

// A message of StreamAttention: a start or a chunk.
struct ScannedStreamRequest {
  // Without `data`. Lives as long as the arena given to ScanStreamRequest.
  const v1::StreamAttentionRequest* metadata = nullptr;
  Payload data;
};

// The message is the concatenation of `fragments`, which must outlive the
// payloads. INVALID_ARGUMENT when it is not a message of this type, and
// RESOURCE_EXHAUSTED (REQUEST_TOO_LARGE) above kMaxMetadataBytes.
absl::StatusOr<ScannedRequest> ScanRequest(
    absl::Span<const absl::string_view> fragments, MessageArena& arena);

// As above, for a message of StreamComputeAttention.
absl::StatusOr<ScannedStreamCompute> ScanStreamComputeRequest(
    absl::Span<const absl::string_view> fragments, MessageArena& arena);

// As above, for a message of StreamAttention.
absl::StatusOr<ScannedStreamRequest> ScanStreamRequest(
    absl::Span<const absl::string_view> fragments, MessageArena& arena);

// Messages about sessions. Those of a call and of its streaming twin have the same
// fields, but for the tag of StreamDecodeRequest.
using ScannedAppend = ScannedMessage<v1::StreamAppendKeysValuesRequest>;
using ScannedAttend = ScannedMessage<v1::AttendSessionRequest>;
using ScannedDecode = ScannedMessage<v1::StreamDecodeRequest>;

absl::StatusOr<ScannedAppend> ScanAppendRequest(
    absl::Span<const absl::string_view> fragments, MessageArena& arena);
absl::StatusOr<ScannedAttend> ScanAttendRequest(
    absl::Span<const absl::string_view> fragments, MessageArena& arena);
absl::StatusOr<ScannedDecode> ScanDecodeRequest(
    absl::Span<const absl::string_view> fragments, MessageArena& arena);

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_REQUEST_SCANNER_H_
