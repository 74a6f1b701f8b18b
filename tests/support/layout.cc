#include "tests/support/layout.h"

namespace attention::test {

TensorStrides MakeStrides(Layout layout, int64_t tokens, int64_t heads,
                          int64_t dims, bool is_key_or_value) {
  switch (layout) {
    case Layout::kHeadMajor:
      return {dims, tokens * dims, 1};
    case Layout::kDimMajor:
      return {1, tokens * dims, tokens};
    case Layout::kStridedDim:
      return {2 * heads * dims, 2 * dims, 2};
    case Layout::kWideRows:
      return {heads * dims + 977, dims, 1};
    case Layout::kReversed:
      return {-heads * dims, -dims, 1};
    case Layout::kExpandedHeads:
      if (is_key_or_value) return {dims, 0, 1};
      break;
    case Layout::kTokenMajor:
    case Layout::kPacked:
      break;
  }
  return {heads * dims, dims, 1};
}

const char* ToString(Layout layout) {
  switch (layout) {
    case Layout::kTokenMajor:
      return "token_major";
    case Layout::kHeadMajor:
      return "head_major";
    case Layout::kDimMajor:
      return "dim_major";
    case Layout::kPacked:
      return "packed";
    case Layout::kExpandedHeads:
      return "expanded_heads";
    case Layout::kStridedDim:
      return "strided_dim";
    case Layout::kWideRows:
      return "wide_rows";
    case Layout::kReversed:
      return "reversed";
  }
  return "unknown";
}

}  // namespace attention::test
