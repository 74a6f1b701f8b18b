// Walks the fields of a protobuf message that lies in fragments, without copying
// it and without allocating.
//
// Takes exactly what protobuf's parser of whole messages takes. CodedInputStream
// does not: it accepts tags and lengths with more bytes than the parser allows,
// depending on where a fragment ends.
#ifndef ATTENTION_SERVER_RPC_WIRE_READER_H_
#define ATTENTION_SERVER_RPC_WIRE_READER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace attention {

// A position in a message. Copies are positions of their own.
class WireReader {
 public:
  // As many as protobuf allows, messages within messages included.
  static constexpr int kMaxGroupDepth = 100;

  // The message is the concatenation of `fragments`, which outlive the reader.
  // It lies within so many others.
  explicit WireReader(absl::Span<const absl::string_view> fragments,
                      int message_depth = 0)
      : fragments_(fragments), group_depth_(kMaxGroupDepth - message_depth) {}

  bool AtEnd();
  size_t position() const { return position_; }

  // False when the message is malformed here; the reader is of no use then.
  bool ReadTag(uint32_t& tag);
  bool ReadLength(size_t& length);
  // Passes the value of the field that `tag` begins, groups included.
  bool SkipField(uint32_t tag) { return SkipField(tag, group_depth_); }

  // Passes `size` bytes and calls visit(part) for each part of them. False when
  // the message has fewer.
  template <typename Visit>
  bool Take(size_t size, Visit visit) {
    while (size > 0) {
      if (AtEnd()) return false;
      const absl::string_view part = rest_.substr(0, size);
      visit(part);
      rest_.remove_prefix(part.size());
      position_ += part.size();
      size -= part.size();
    }
    return true;
  }

 private:
  bool ReadVarint(int max_bytes, uint64_t& value);
  bool SkipField(uint32_t tag, int group_depth);

  absl::Span<const absl::string_view> fragments_;  // that are still to come
  absl::string_view rest_;                         // of the present one
  size_t position_ = 0;
  int group_depth_;  // that is left
};

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_WIRE_READER_H_
