// Where the CPU backend keeps what in a page (kernels/paged_params.h): elements
// in their order, zeros in the padding.
#ifndef ATTENTION_KERNELS_CPU_PAGE_LAYOUT_H_
#define ATTENTION_KERNELS_CPU_PAGE_LAYOUT_H_

#include <cstddef>
#include <cstdint>

#include "kernels/paged_params.h"

namespace attention::cpu {

// The keys or the values of a page.
struct PageRows {
  int64_t page_tokens;
  int64_t row_bytes;
  int64_t offset;  // bytes from the start of the page

  static constexpr PageRows Keys(const PagedConfig& c) {
    return {c.page_tokens, PageRowBytes(c, c.heads.head_dim_qk), 0};
  }
  static constexpr PageRows Values(const PagedConfig& c) {
    return {c.page_tokens, PageRowBytes(c, c.heads.head_dim_v),
            PageKeyBytes(c)};
  }

  // The row of a token; those of the tokens after it in the page follow.
  std::byte* Row(void* const* pages, int64_t token, int64_t kv_head) const {
    return static_cast<std::byte*>(pages[token / page_tokens]) + offset +
           (kv_head * page_tokens + token % page_tokens) * row_bytes;
  }

  // How many of the tokens from `token` on lie in its page, up to `end`.
  int64_t RunLength(int64_t token, int64_t end) const {
    const int64_t page_end = (token / page_tokens + 1) * page_tokens;
    return (page_end < end ? page_end : end) - token;
  }
};

}  // namespace attention::cpu

#endif  // ATTENTION_KERNELS_CPU_PAGE_LAYOUT_H_
