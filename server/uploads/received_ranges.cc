#include "server/uploads/received_ranges.h"

#include <algorithm>
#include <iterator>

namespace attention {

ReceivedRanges::Ranges::const_iterator ReceivedRanges::FirstEndingFrom(
    size_t begin) const {
  auto it = ranges_.upper_bound(begin);
  if (it != ranges_.begin() && std::prev(it)->second >= begin) --it;
  return it;
}

absl::InlinedVector<ByteRange, 1> ReceivedRanges::Missing(
    ByteRange range) const {
  absl::InlinedVector<ByteRange, 1> missing;
  size_t at = range.begin;
  for (auto it = FirstEndingFrom(range.begin);
       it != ranges_.end() && it->first < range.end; ++it) {
    if (at < it->first) missing.push_back({at, it->first});
    at = std::max(at, it->second);
  }
  if (at < range.end) missing.push_back({at, range.end});
  return missing;
}

size_t ReceivedRanges::CountWith(ByteRange range) const {
  if (range.begin >= range.end) return ranges_.size();
  size_t merged = 0;
  for (auto it = FirstEndingFrom(range.begin);
       it != ranges_.end() && it->first <= range.end; ++it) {
    ++merged;
  }
  return ranges_.size() - merged + 1;
}

void ReceivedRanges::Add(ByteRange range) {
  if (range.begin >= range.end) return;
  auto it = FirstEndingFrom(range.begin);
  while (it != ranges_.end() && it->first <= range.end) {
    range.begin = std::min(range.begin, it->first);
    range.end = std::max(range.end, it->second);
    received_bytes_ -= it->second - it->first;
    it = ranges_.erase(it);
  }
  ranges_.emplace(range.begin, range.end);
  received_bytes_ += range.end - range.begin;
}

}  // namespace attention
