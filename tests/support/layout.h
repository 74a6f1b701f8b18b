// The memory layouts that test problems come in.
#ifndef ATTENTION_TESTS_SUPPORT_LAYOUT_H_
#define ATTENTION_TESTS_SUPPORT_LAYOUT_H_

#include <cstdint>

#include "kernels/attention_params.h"

namespace attention::test {

// How query, key, value and output lie in memory. The output of kPacked and
// kExpandedHeads is kTokenMajor.
enum class Layout {
  kTokenMajor,     // [token, head, dim], "BSHD"
  kHeadMajor,      // [head, token, dim], "BHSD"
  kDimMajor,       // [head, dim, token]: transposed, token stride 1
  kPacked,         // [token, query heads + key heads + value heads, dim]
  kExpandedHeads,  // every K/V head is the same memory: head stride 0
  kStridedDim,     // kTokenMajor with a dim stride of 2
  kWideRows,       // kTokenMajor, tokens further apart than they need be
  kReversed,       // kTokenMajor with negative token and head strides
};
inline constexpr Layout kAllLayouts[] = {
    Layout::kTokenMajor, Layout::kHeadMajor,     Layout::kDimMajor,
    Layout::kPacked,     Layout::kExpandedHeads, Layout::kStridedDim,
    Layout::kWideRows,   Layout::kReversed};

// Strides of a [tokens, heads, dims] tensor. For kPacked, where they depend on
// the other tensors, those of kTokenMajor.
TensorStrides MakeStrides(Layout layout, int64_t tokens, int64_t heads,
                          int64_t dims, bool is_key_or_value);

const char* ToString(Layout layout);

}  // namespace attention::test

#endif  // ATTENTION_TESTS_SUPPORT_LAYOUT_H_
