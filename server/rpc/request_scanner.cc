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

absl::Status Malformed() {
  return WithReason(absl::InvalidArgumentError(
                        "the message is not a valid ComputeAttentionRequest"),
                    error_reason::kInvalidRequest);
}

// The payload that the field is; null for other fields.
Payload* PayloadOf(uint32_t tag, ScannedRequest& request) {
  if (WireFormatLite::GetTagWireType(tag) !=
      WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
    return nullptr;
  }
  switch (WireFormatLite::GetTagFieldNumber(tag)) {
    case Request::kQueryFieldNumber: return &request.query;
    case Request::kKeyFieldNumber: return &request.key;
    case Request::kValueFieldNumber: return &request.value;
    default: return nullptr;
  }
}

bool IsMetadata(uint32_t tag) {
  const int field = WireFormatLite::GetTagFieldNumber(tag);
  return field <= Request::kWeightsReferenceFieldNumber;
}

}  // namespace

absl::StatusOr<ScannedRequest> ScanRequest(
    absl::Span<const absl::string_view> fragments, MessageArena& arena) {
  WireReader reader(fragments);
  ScannedRequest scanned;
  Metadata metadata;
  while (!reader.AtEnd()) {
    WireReader begin = reader;
    uint32_t tag;
    if (!reader.ReadTag(tag)) return Malformed();
    if (Payload* const payload = PayloadOf(tag, scanned)) {
      size_t size;
      payload->fragments.clear();
      const auto add = [&](absl::string_view part) {
        payload->fragments.push_back(part);
      };
      if (!reader.ReadLength(size) || !reader.Take(size, add)) {
        return Malformed();
      }
      continue;
    }
    if (!reader.SkipField(tag)) return Malformed();
    if (!IsMetadata(tag)) continue;
    const size_t size = reader.position() - begin.position();
    if (metadata.size() + size > kMaxMetadataBytes) {
      return WithReason(
          absl::ResourceExhaustedError(absl::StrCat(
              "the metadata must be at most ", kMaxMetadataBytes, " bytes")),
          error_reason::kRequestTooLarge);
    }
    begin.Take(size, [&](absl::string_view part) { metadata.Append(part); });
  }
  const absl::string_view bytes = metadata.bytes();
  Request& request = arena.Create<Request>();
  if (!request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Malformed();
  }
  scanned.metadata = &request;
  return scanned;
}

}  // namespace attention
