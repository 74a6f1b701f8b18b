// Which keys a query of a PagedSequence sees: the one definition.
#ifndef ATTENTION_KERNELS_PAGED_MASK_H_
#define ATTENTION_KERNELS_PAGED_MASK_H_

#include <cstdint>

#include "kernels/host_device.h"
#include "kernels/mask.h"
#include "kernels/paged_params.h"

namespace attention {

// Query i sees key j iff  begin <= j < end,  j <= i + upper,  and
// i + lower <= j or j < sinks. So it sees two ranges, of which the first, the
// sinks', may be empty, and may touch the second.
struct PagedBand {
  int64_t lower;
  int64_t upper;
  int64_t begin;
  int64_t end;
  int64_t sinks;

  // Those that the window shows.
  ATTENTION_HOST_DEVICE constexpr KeyRange Window(int64_t query) const {
    const int64_t from = query + lower;
    const int64_t to = query + upper + 1;
    return {from > begin ? from : begin, to < end ? to : end};
  }
  // Those that are sinks.
  ATTENTION_HOST_DEVICE constexpr KeyRange Sinks(int64_t query) const {
    const int64_t to = query + upper + 1;
    const int64_t last = to < end ? to : end;
    return {begin, sinks < last ? sinks : last};
  }
  ATTENTION_HOST_DEVICE constexpr bool Sees(int64_t query, int64_t key) const {
    return begin <= key && key < end && key <= query + upper &&
           (query + lower <= key || key < sinks);
  }
  // Whether queries [first, last] all see every key in [keys.begin, keys.end).
  ATTENTION_HOST_DEVICE constexpr bool SeesAll(int64_t first, int64_t last,
                                               KeyRange keys) const {
    return begin <= keys.begin && keys.end <= end &&
           keys.end <= first + upper + 1 &&
           (last + lower <= keys.begin || keys.end <= sinks);
  }
};

ATTENTION_HOST_DEVICE constexpr PagedBand MakePagedBand(
    MaskKind mask, const PagedSequence& s) {
  Sequence lengths;
  lengths.query_length = s.query_length;
  lengths.key_length = s.key_length;
  lengths.window_left = s.window_left;
  lengths.window_right = s.window_right;
  const MaskBand band = MakeMaskBand(mask, lengths);
  return {band.lower, band.upper, s.key_begin, s.key_end, s.sink_tokens};
}

}  // namespace attention

#endif  // ATTENTION_KERNELS_PAGED_MASK_H_
