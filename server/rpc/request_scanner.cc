#include "server/rpc/request_scanner.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "server/engine/error_reason.h"

namespace attention {
namespace {

using ::google::protobuf::io::CodedInputStream;
using ::google::protobuf::internal::WireFormatLite;
using Request = v1::ComputeAttentionRequest;

// Reads fragments one after the other.
class FragmentStream : public google::protobuf::io::ZeroCopyInputStream {
 public:
  explicit FragmentStream(absl::Span<const absl::string_view> fragments)
      : fragments_(fragments) {}

  bool Next(const void** data, int* size) override {
    while (next_ < fragments_.size() && offset_ == fragments_[next_].size()) {
      Advance();
    }
    if (next_ == fragments_.size()) return false;
    *data = fragments_[next_].data() + offset_;
    *size = static_cast<int>(fragments_[next_].size() - offset_);
    byte_count_ += *size;
    Advance();
    return true;
  }

  void BackUp(int count) override {
    --next_;
    offset_ = fragments_[next_].size() - count;
    byte_count_ -= count;
  }

  bool Skip(int count) override {
    const void* data;
    int size = 0;
    while (count > 0 && Next(&data, &size)) count -= size;
    if (count < 0) BackUp(-count);
    return count <= 0;
  }

  int64_t ByteCount() const override { return byte_count_; }

 private:
  void Advance() {
    ++next_;
    offset_ = 0;
  }

  const absl::Span<const absl::string_view> fragments_;
  size_t next_ = 0;
  size_t offset_ = 0;  // into fragments_[next_]
  int64_t byte_count_ = 0;
};

struct Range {
  int64_t begin = 0;
  int64_t end = 0;
};

// Finds byte ranges in the fragments.
class FragmentTable {
 public:
  explicit FragmentTable(absl::Span<const absl::string_view> fragments)
      : fragments_(fragments) {
    begins_.reserve(fragments.size());
    int64_t size = 0;
    for (absl::string_view fragment : fragments) {
      begins_.push_back(size);
      size += static_cast<int64_t>(fragment.size());
    }
  }

  template <typename Visit>
  void ForEach(Range range, Visit visit) const {
    if (range.begin >= range.end) return;
    const auto after =
        std::upper_bound(begins_.begin(), begins_.end(), range.begin);
    for (size_t i = after - begins_.begin() - 1; range.begin < range.end; ++i) {
      const int64_t offset = range.begin - begins_[i];
      const absl::string_view part =
          fragments_[i].substr(offset, range.end - range.begin);
      if (!part.empty()) visit(part);
      range.begin += static_cast<int64_t>(part.size());
    }
  }

 private:
  const absl::Span<const absl::string_view> fragments_;
  std::vector<int64_t> begins_;
};

absl::Status Malformed() {
  return WithReason(absl::InvalidArgumentError(
                        "the message is not a valid ComputeAttentionRequest"),
                    error_reason::kInvalidRequest);
}

bool IsPayload(uint32_t tag) {
  const int field = WireFormatLite::GetTagFieldNumber(tag);
  return (field == Request::kQueryFieldNumber ||
          field == Request::kKeyFieldNumber ||
          field == Request::kValueFieldNumber) &&
         WireFormatLite::GetTagWireType(tag) ==
             WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
}

bool IsMetadata(uint32_t tag) {
  const int field = WireFormatLite::GetTagFieldNumber(tag);
  return field <= Request::kWeightsReferenceFieldNumber;
}

}  // namespace

absl::StatusOr<ScannedRequest> ScanRequest(
    absl::Span<const absl::string_view> fragments) {
  FragmentStream stream(fragments);
  CodedInputStream input(&stream);
  const FragmentTable table(fragments);
  Range payloads[3];
  std::string metadata;

  for (;;) {
    const int64_t begin = input.CurrentPosition();
    const uint32_t tag = input.ReadTag();
    if (tag == 0) break;
    if (IsPayload(tag)) {
      int size = 0;
      if (!input.ReadVarintSizeAsInt(&size)) return Malformed();
      const int64_t start = input.CurrentPosition();
      if (!input.Skip(size)) return Malformed();
      payloads[WireFormatLite::GetTagFieldNumber(tag) -
               Request::kQueryFieldNumber] = {start, start + size};
      continue;
    }
    if (!WireFormatLite::SkipField(&input, tag)) return Malformed();
    if (!IsMetadata(tag)) continue;
    const int64_t end = input.CurrentPosition();
    if (metadata.size() + (end - begin) > kMaxMetadataBytes) {
      return WithReason(
          absl::ResourceExhaustedError(absl::StrCat(
              "the metadata must be at most ", kMaxMetadataBytes, " bytes")),
          error_reason::kRequestTooLarge);
    }
    table.ForEach({begin, end},
                  [&](absl::string_view part) { absl::StrAppend(&metadata, part); });
  }
  // A tag of 0 also stands for one that is malformed.
  if (!input.ConsumedEntireMessage()) return Malformed();

  ScannedRequest scanned;
  if (!scanned.metadata.ParseFromString(metadata)) return Malformed();
  Payload* const targets[3] = {&scanned.query, &scanned.key, &scanned.value};
  for (int i = 0; i < 3; ++i) {
    table.ForEach(payloads[i], [&](absl::string_view part) {
      targets[i]->fragments.push_back(part);
    });
  }
  return scanned;
}

}  // namespace attention
