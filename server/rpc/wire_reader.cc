#include "server/rpc/wire_reader.h"

#include "google/protobuf/wire_format_lite.h"

namespace attention {
namespace {

using ::google::protobuf::internal::WireFormatLite;

constexpr int kMaxVarintBytes = 10;
constexpr int kMaxTagBytes = 5;
constexpr int kMaxLengthBytes = 5;

}  // namespace

bool WireReader::AtEnd() {
  while (rest_.empty()) {
    if (fragments_.empty()) return true;
    rest_ = fragments_.front();
    fragments_.remove_prefix(1);
  }
  return false;
}

bool WireReader::ReadVarint(int max_bytes, uint64_t& value) {
  value = 0;
  for (int i = 0; i < max_bytes; ++i) {
    if (AtEnd()) return false;
    const auto byte = static_cast<uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    ++position_;
    value |= static_cast<uint64_t>(byte & 0x7f) << (7 * i);
    if (byte < 0x80) return true;
  }
  return false;
}

bool WireReader::ReadTag(uint32_t& tag) {
  uint64_t value;
  if (!ReadVarint(kMaxTagBytes, value)) return false;
  tag = static_cast<uint32_t>(value);  // as protobuf does with wider ones
  return WireFormatLite::GetTagFieldNumber(tag) != 0;
}

bool WireReader::ReadLength(size_t& length) {
  uint64_t value;
  if (!ReadVarint(kMaxLengthBytes, value)) return false;
  length = value;
  return true;
}

bool WireReader::SkipField(uint32_t tag, int group_depth) {
  const auto ignore = [](absl::string_view) {};
  switch (WireFormatLite::GetTagWireType(tag)) {
    case WireFormatLite::WIRETYPE_VARINT: {
      uint64_t value;
      return ReadVarint(kMaxVarintBytes, value);
    }
    case WireFormatLite::WIRETYPE_FIXED64: return Take(8, ignore);
    case WireFormatLite::WIRETYPE_FIXED32: return Take(4, ignore);
    case WireFormatLite::WIRETYPE_LENGTH_DELIMITED: {
      size_t length;
      return ReadLength(length) && Take(length, ignore);
    }
    case WireFormatLite::WIRETYPE_START_GROUP: {
      if (group_depth == 0) return false;
      const uint32_t end =
          WireFormatLite::MakeTag(WireFormatLite::GetTagFieldNumber(tag),
                                  WireFormatLite::WIRETYPE_END_GROUP);
      uint32_t inner;
      while (ReadTag(inner)) {
        if (inner == end) return true;
        if (!SkipField(inner, group_depth - 1)) return false;
      }
      return false;
    }
    default: return false;  // the end of no group, or no wire type at all
  }
}

}  // namespace attention
