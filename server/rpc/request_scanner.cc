#include "server/rpc/request_scanner.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "google/protobuf/wire_format_lite.h"
#include "server/engine/error_reason.h"
#include "server/rpc/wire_reader.h"

namespace attention {
namespace {

using ::google::protobuf::internal::WireFormatLite;
using Request = v1::ComputeAttentionRequest;
using StreamRequest = v1::StreamAttentionRequest;

// The metadata's fields one after the other. They stay where they arrived as long
// as they lie in one piece, which is how messages usually come.
class Metadata {
 public:
  void Append(absl::string_view part) {
    if (size() == 0) {
      whole_ = part;
    } else if (copy_.empty() && whole_.data() + whole_.size() == part.data()) {
      whole_ = {whole_.data(), whole_.size() + part.size()};
    } else {
      if (copy_.empty()) copy_ = std::string(whole_);
      absl::StrAppend(&copy_, part);
    }
  }

  size_t size() const { return bytes().size(); }
  absl::string_view bytes() const { return copy_.empty() ? whole_ : copy_; }

 private:
  absl::string_view whole_;
  std::string copy_;  // when there is more than one piece
};

absl::Status Malformed(absl::string_view message_name) {
  return InvalidRequest(
      absl::StrCat("the message is not a valid ", message_name));
}

// Splits a message into its metadata, which are the fields up to a number, and
// the payloads: payload_of(number) is the one that a field of type `bytes`
// holds, or null.
template <typename PayloadOf>
absl::StatusOr<Metadata> Split(absl::Span<const absl::string_view> fragments,
                               absl::string_view message_name,
                               int last_metadata_field, PayloadOf payload_of) {
  WireReader reader(fragments);
  Metadata metadata;
  while (!reader.AtEnd()) {
    WireReader begin = reader;
    uint32_t tag;
    if (!reader.ReadTag(tag)) return Malformed(message_name);
    const int field = WireFormatLite::GetTagFieldNumber(tag);
    Payload* const payload = WireFormatLite::GetTagWireType(tag) ==
                                     WireFormatLite::WIRETYPE_LENGTH_DELIMITED
                                 ? payload_of(field)
                                 : nullptr;
    if (payload != nullptr) {
      size_t size;
      payload->fragments.clear();
      const auto add = [&](absl::string_view part) {
        payload->fragments.push_back(part);
      };
      if (!reader.ReadLength(size) || !reader.Take(size, add)) {
        return Malformed(message_name);
      }
      continue;
    }
    if (!reader.SkipField(tag)) return Malformed(message_name);
    if (field > last_metadata_field) continue;
    const size_t size = reader.position() - begin.position();
    if (metadata.size() + size > kMaxMetadataBytes) {
      return WithReason(
          absl::ResourceExhaustedError(absl::StrCat(
              "the metadata must be at most ", kMaxMetadataBytes, " bytes")),
          error_reason::kRequestTooLarge);
    }
    begin.Take(size, [&](absl::string_view part) { metadata.Append(part); });
  }
  return metadata;
}

template <typename Message>
const Message* Parse(const Metadata& metadata, MessageArena& arena) {
  const absl::string_view bytes = metadata.bytes();
  Message& message = arena.Create<Message>();
  return message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))
             ? &message
             : nullptr;
}

// A message that may have tensors, in fields of the same numbers as those of
// ComputeAttentionRequest.
template <typename Message>
absl::Status Scan(absl::Span<const absl::string_view> fragments,
                  absl::string_view message_name, int last_metadata_field,
                  MessageArena& arena, ScannedMessage<Message>& scanned) {
  const auto payload_of = [&](int field) -> Payload* {
    switch (field) {
      case Request::kQueryFieldNumber: return &scanned.query;
      case Request::kKeyFieldNumber: return &scanned.key;
      case Request::kValueFieldNumber: return &scanned.value;
      default: return nullptr;
    }
  };
  const absl::StatusOr<Metadata> metadata =
      Split(fragments, message_name, last_metadata_field, payload_of);
  if (!metadata.ok()) return metadata.status();
  scanned.metadata = Parse<Message>(*metadata, arena);
  return scanned.metadata != nullptr ? absl::OkStatus()
                                     : Malformed(message_name);
}

}  // namespace

absl::StatusOr<ScannedRequest> ScanRequest(
    absl::Span<const absl::string_view> fragments, MessageArena& arena) {
  ScannedRequest scanned;
  absl::Status status =
      Scan(fragments, "ComputeAttentionRequest",
           Request::kWeightsReferenceFieldNumber, arena, scanned);
  if (!status.ok()) return status;
  return scanned;
}

absl::StatusOr<ScannedStreamRequest> ScanStreamRequest(
    absl::Span<const absl::string_view> fragments, MessageArena& arena) {
  constexpr char kName[] = "StreamAttentionRequest";
  ScannedStreamRequest scanned;
  const auto payload_of = [&](int field) {
    return field == StreamRequest::kDataFieldNumber ? &scanned.data : nullptr;
  };
  const absl::StatusOr<Metadata> metadata =
      Split(fragments, kName, StreamRequest::kByteOffsetFieldNumber, payload_of);
  if (!metadata.ok()) return metadata.status();
  scanned.metadata = Parse<StreamRequest>(*metadata, arena);
  if (scanned.metadata == nullptr) return Malformed(kName);
  return scanned;
}

absl::StatusOr<ScannedAppend> ScanAppendRequest(
    absl::Span<const absl::string_view> fragments, MessageArena& arena) {
  ScannedAppend scanned;
  absl::Status status =
      Scan(fragments, "AppendKeysValuesRequest",
           v1::StreamAppendKeysValuesRequest::kPriorityFieldNumber, arena,
           scanned);
  if (!status.ok()) return status;
  scanned.query = {};  // the message has none: an unknown field
  return scanned;
}

absl::StatusOr<ScannedAttend> ScanAttendRequest(
    absl::Span<const absl::string_view> fragments, MessageArena& arena) {
  ScannedAttend scanned;
  absl::Status status =
      Scan(fragments, "AttendSessionRequest",
           v1::AttendSessionRequest::kPriorityFieldNumber, arena, scanned);
  if (!status.ok()) return status;
  scanned.key = {};  // the message has none of both: unknown fields
  scanned.value = {};
  return scanned;
}

absl::StatusOr<ScannedDecode> ScanDecodeRequest(
    absl::Span<const absl::string_view> fragments, MessageArena& arena) {
  ScannedDecode scanned;
  absl::Status status =
      Scan(fragments, "DecodeRequest",
           v1::StreamDecodeRequest::kTagFieldNumber, arena, scanned);
  if (!status.ok()) return status;
  return scanned;
}

}  // namespace attention
