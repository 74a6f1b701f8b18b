#include "server/rpc/request_scanner.h"

#include <cstdint>
#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "server/engine/error_reason.h"
#include "server/rpc/wire_reader.h"

namespace attention {
namespace {

using ::google::protobuf::internal::WireFormatLite;
using ::google::protobuf::io::CodedInputStream;
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

absl::Status NoSubmessage() { return absl::OkStatus(); }

// Splits a message into its metadata, which are the fields up to a number, and
// the payloads: payload_of(number) is the one that a field of type `bytes`
// holds, or null. After each, take() may look at it.
template <typename PayloadOf, typename Take = absl::Status (*)()>
absl::Status Split(WireReader reader, absl::string_view message_name,
                   int last_metadata_field, Metadata& metadata,
                   PayloadOf payload_of, Take take = NoSubmessage) {
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
      if (absl::Status s = take(); !s.ok()) return s;
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
  return absl::OkStatus();
}

template <typename Message>
absl::StatusOr<const Message*> Parse(const Metadata& metadata,
                                     absl::string_view message_name,
                                     MessageArena& arena) {
  const absl::string_view bytes = metadata.bytes();
  Message& message = arena.Create<Message>();
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Malformed(message_name);
  }
  return &message;
}

// As above, of a message within another one, which may have a level less.
template <typename Message>
absl::StatusOr<const Message*> ParseSubmessage(const Metadata& metadata,
                                               absl::string_view message_name,
                                               MessageArena& arena) {
  const absl::string_view bytes = metadata.bytes();
  CodedInputStream input(reinterpret_cast<const uint8_t*>(bytes.data()),
                         static_cast<int>(bytes.size()));
  input.SetRecursionLimit(WireReader::kMaxGroupDepth - 1);
  Message& message = arena.Create<Message>();
  if (!message.ParseFromCodedStream(&input) || !input.ConsumedEntireMessage()) {
    return Malformed(message_name);
  }
  return &message;
}

// payload_of(scanned, number) is the payload of `scanned` that a field of type
// `bytes` holds, or null.
template <typename Scanned, typename PayloadOf>
absl::StatusOr<Scanned> Scan(absl::Span<const absl::string_view> fragments,
                             absl::string_view message_name,
                             int last_metadata_field, MessageArena& arena,
                             PayloadOf payload_of) {
  using Message =
      std::remove_const_t<std::remove_pointer_t<decltype(Scanned::metadata)>>;
  Scanned scanned;
  Metadata metadata;
  absl::Status status =
      Split(WireReader(fragments), message_name, last_metadata_field, metadata,
            [&](int field) { return payload_of(scanned, field); });
  if (!status.ok()) return status;
  absl::StatusOr<const Message*> message =
      Parse<Message>(metadata, message_name, arena);
  if (!message.ok()) return message.status();
  scanned.metadata = *message;
  return scanned;
}

// A message with all of these tensors, which have the same numbers in each.
template <typename Message>
Payload* TensorOf(ScannedMessage<Message>& scanned, int field) {
  switch (field) {
    case Request::kQueryFieldNumber:
      return &scanned.query;
    case Request::kKeyFieldNumber:
      return &scanned.key;
    case Request::kValueFieldNumber:
      return &scanned.value;
    default:
      return nullptr;
  }
}

}  // namespace

absl::StatusOr<ScannedRequest> ScanRequest(
    absl::Span<const absl::string_view> fragments, MessageArena& arena) {
  return Scan<ScannedRequest>(fragments, "ComputeAttentionRequest",
                              Request::kValueScalesFieldNumber, arena,
                              TensorOf<v1::ComputeAttentionRequest>);
}

absl::StatusOr<ScannedStreamCompute> ScanStreamComputeRequest(
    absl::Span<const absl::string_view> fragments, MessageArena& arena) {
  using Message = v1::StreamComputeAttentionRequest;
  constexpr char kName[] = "StreamComputeAttentionRequest";
  ScannedStreamCompute scanned;
  Metadata outer;
  Metadata inner;
  Payload submessage;
  // A request that comes in several fields is what they are together.
  const auto take = [&] {
    return Split(WireReader(submessage.fragments, /*message_depth=*/1), kName,
                 Request::kValueScalesFieldNumber, inner,
                 [&](int field) { return TensorOf(scanned.request, field); });
  };
  absl::Status status = Split(
      WireReader(fragments), kName, Message::kTagFieldNumber, outer,
      [&](int field) {
        return field == Message::kRequestFieldNumber ? &submessage : nullptr;
      },
      take);
  if (!status.ok()) return status;
  const absl::StatusOr<const Message*> message =
      Parse<Message>(outer, kName, arena);
  if (!message.ok()) return message.status();
  scanned.tag = (*message)->tag();
  const absl::StatusOr<const Request*> request =
      ParseSubmessage<Request>(inner, kName, arena);
  if (!request.ok()) return request.status();
  scanned.request.metadata = *request;
  return scanned;
}

absl::StatusOr<ScannedStreamRequest> ScanStreamRequest(
    absl::Span<const absl::string_view> fragments, MessageArena& arena) {
  return Scan<ScannedStreamRequest>(
      fragments, "StreamAttentionRequest",
      StreamRequest::kByteOffsetFieldNumber, arena,
      [](ScannedStreamRequest& scanned, int field) {
        return field == StreamRequest::kDataFieldNumber ? &scanned.data
                                                        : nullptr;
      });
}

absl::StatusOr<ScannedAppend> ScanAppendRequest(
    absl::Span<const absl::string_view> fragments, MessageArena& arena) {
  return Scan<ScannedAppend>(
      fragments, "AppendKeysValuesRequest",
      v1::StreamAppendKeysValuesRequest::kPriorityFieldNumber, arena,
      [](ScannedAppend& scanned, int field) {
        // The message has none: an unknown field.
        return field == Request::kQueryFieldNumber ? nullptr
                                                   : TensorOf(scanned, field);
      });
}

absl::StatusOr<ScannedAttend> ScanAttendRequest(
    absl::Span<const absl::string_view> fragments, MessageArena& arena) {
  return Scan<ScannedAttend>(
      fragments, "AttendSessionRequest",
      v1::AttendSessionRequest::kPriorityFieldNumber, arena,
      [](ScannedAttend& scanned, int field) {
        // The message has no others.
        return field == Request::kQueryFieldNumber ? &scanned.query : nullptr;
      });
}

absl::StatusOr<ScannedDecode> ScanDecodeRequest(
    absl::Span<const absl::string_view> fragments, MessageArena& arena) {
  return Scan<ScannedDecode>(fragments, "DecodeRequest",
                             v1::StreamDecodeRequest::kTagFieldNumber, arena,
                             TensorOf<v1::StreamDecodeRequest>);
}

}  // namespace attention
