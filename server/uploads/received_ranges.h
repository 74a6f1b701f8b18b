// Which bytes of a tensor have arrived.
#ifndef ATTENTION_SERVER_UPLOADS_RECEIVED_RANGES_H_
#define ATTENTION_SERVER_UPLOADS_RECEIVED_RANGES_H_

#include <cstddef>

#include "absl/container/btree_map.h"
#include "absl/container/inlined_vector.h"

namespace attention {

struct ByteRange {
  size_t begin = 0;
  size_t end = 0;

  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

// Not thread-safe.
class ReceivedRanges {
 public:
  // Beginnings and ends of the ranges: they neither overlap nor touch.
  using Ranges = absl::btree_map<size_t, size_t>;

  // The parts of the range that have not arrived, in order.
  absl::InlinedVector<ByteRange, 1> Missing(ByteRange range) const;

  // How many ranges there were after adding one.
  size_t CountWith(ByteRange range) const;
  void Add(ByteRange range);

  const Ranges& ranges() const { return ranges_; }
  size_t received_bytes() const { return received_bytes_; }

 private:
  // The first range that ends at `begin` or after it.
  Ranges::const_iterator FirstEndingFrom(size_t begin) const;

  Ranges ranges_;
  size_t received_bytes_ = 0;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_UPLOADS_RECEIVED_RANGES_H_
