// The one definition of which keys a query sees, used by every implementation.
#ifndef ATTENTION_KERNELS_MASK_H_
#define ATTENTION_KERNELS_MASK_H_

#include <cstdint>

#include "kernels/attention_params.h"
#include "kernels/host_device.h"
#include "kernels/paged_params.h"

namespace attention {

// The half-open range [begin, end) of visible keys; empty when begin >= end.
struct KeyRange {
  int64_t begin;
  int64_t end;
};

// The mask of one sequence reduced to two diagonals: query i sees key j iff
//
//   i + lower <= j <= i + upper   and   key_begin <= j < key_end.
//
// Masks are bands, so this is all that a kernel needs to know.
struct MaskBand {
  int64_t lower;
  int64_t upper;
  int64_t key_begin;
  int64_t key_end;

  ATTENTION_HOST_DEVICE constexpr KeyRange VisibleKeys(int64_t query) const {
    const int64_t begin = query + lower;
    const int64_t end = query + upper + 1;
    return {begin > key_begin ? begin : key_begin,
            end < key_end ? end : key_end};
  }

  // The union of the visible ranges of queries [first, last].
  ATTENTION_HOST_DEVICE constexpr KeyRange VisibleKeys(int64_t first,
                                                       int64_t last) const {
    return {VisibleKeys(first).begin, VisibleKeys(last).end};
  }

  // True when every query in [first, last] sees every key in [begin, end).
  ATTENTION_HOST_DEVICE constexpr bool SeesAll(int64_t first, int64_t last,
                                               KeyRange keys) const {
    return VisibleKeys(last).begin <= keys.begin &&
           keys.end <= VisibleKeys(first).end;
  }
};

// Wider than any sequence, and small enough that sums of three cannot overflow.
inline constexpr int64_t kUnboundedDiagonal = int64_t{1} << 60;

// The diagonal is j = i for kCausalTopLeft and j = i + N - M otherwise; a
// window without a causal mask is therefore aligned to the bottom right.
// `AnySequence` is a Sequence or a PagedSequence; of the latter this is the
// mask without sinks and key range.
template <typename AnySequence>
ATTENTION_HOST_DEVICE constexpr MaskBand MakeMaskBand(MaskKind mask,
                                                      const AnySequence& s) {
  const int64_t diagonal =
      mask == MaskKind::kCausalTopLeft ? 0 : s.key_length - s.query_length;
  const bool unlimited_left =
      s.window_left < 0 || s.window_left >= kUnboundedDiagonal;
  const bool unlimited_right =
      s.window_right < 0 || s.window_right >= kUnboundedDiagonal;
  const int64_t lower =
      unlimited_left ? -kUnboundedDiagonal : diagonal - s.window_left;
  int64_t upper =
      unlimited_right ? kUnboundedDiagonal : diagonal + s.window_right;
  if (mask != MaskKind::kNone && upper > diagonal) upper = diagonal;
  return {lower, upper, 0, s.key_length};
}

// Where queries see the first keys of a sequence whatever their window says:
// two bands without a common key, the first before the second.
struct SinkMask {
  MaskBand sinks;   // empty unless the window would hide sinks
  MaskBand window;  // without what `sinks` has
};

ATTENTION_HOST_DEVICE constexpr SinkMask MakeSinkMask(MaskKind mask,
                                                      const Sequence& s) {
  return {{-kUnboundedDiagonal, kUnboundedDiagonal, 0, 0},
          MakeMaskBand(mask, s)};
}

ATTENTION_HOST_DEVICE constexpr SinkMask MakeSinkMask(MaskKind mask,
                                                      const PagedSequence& s) {
  MaskBand window = MakeMaskBand(mask, s);
  window.key_begin = s.key_begin;
  window.key_end = s.key_end;
  MaskBand sinks = window;
  sinks.lower = -kUnboundedDiagonal;
  sinks.key_end = s.key_begin;
  if (window.lower > -kUnboundedDiagonal && s.sink_tokens > s.key_begin) {
    sinks.key_end = s.sink_tokens < s.key_end ? s.sink_tokens : s.key_end;
    window.key_begin = sinks.key_end;
  }
  return {sinks, window};
}

}  // namespace attention

#endif  // ATTENTION_KERNELS_MASK_H_
