// Attention of new queries against keys and values that stay: paged K/V.
//
// The keys and values of a sequence lie in pages of equal size. What each
// sequence computes is what attention_params.h says, with its keys numbered by
// their position in the sequence, whether or not they are all looked at.
//
// A page has the keys of page_tokens consecutive tokens, then their values,
// each [kv_head_count, page_tokens, row], where a row is one head of one token,
// padded to a multiple of 16 bytes. How elements are ordered within a row, and
// what lies in the padding, is the business of the backend that wrote it: pages
// are filled by AppendKeysValues of the same backend and read by no one else.
//
// PODs without ownership, as in attention_params.h.
#ifndef ATTENTION_KERNELS_PAGED_PARAMS_H_
#define ATTENTION_KERNELS_PAGED_PARAMS_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/attention_params.h"

namespace attention {

// How elements of pages are stored.
enum class KvDataType : int32_t {
  kSame = 0,         // as the HeadConfig's data type
  kFloat8E4M3 = 1,   // 8 bits: element = stored * scale of its K/V head
};

// How a backend may cut the keys of sequences to compute the parts at a time.
enum class SplitPolicy : int32_t {
  // By a sequence's own shape alone: bit by bit, what it gets does not depend on
  // the others of a launch.
  kFixed = 0,
  // So that all of a launch takes the least time.
  kBalanced = 1,
};

inline constexpr int32_t kMaxPageTokens = 1 << 16;

// Everything that must be equal for two sequences to share one launch.
struct PagedConfig {
  // The mask's diagonal and the algorithm are as for stateless attention;
  // kThreeStep is not available.
  HeadConfig heads;
  KvDataType kv_data_type = KvDataType::kSame;
  int32_t page_tokens = 64;  // 1...kMaxPageTokens
  SplitPolicy split_policy = SplitPolicy::kFixed;

  friend bool operator==(const PagedConfig&, const PagedConfig&) = default;

  template <typename H>
  friend H AbslHashValue(H h, const PagedConfig& c) {
    return H::combine(std::move(h), c.heads, c.kv_data_type, c.page_tokens,
                      c.split_policy);
  }
};

constexpr int64_t KvElementBytes(const PagedConfig& config) {
  return config.kv_data_type == KvDataType::kSame
             ? ElementBytes(config.heads.data_type)
             : 1;
}

// Bytes of a row of `head_dim` elements in a page.
constexpr int64_t PageRowBytes(const PagedConfig& config, int32_t head_dim) {
  return (head_dim * KvElementBytes(config) + 15) / 16 * 16;
}

constexpr int64_t PageKeyBytes(const PagedConfig& config) {
  return PageRowBytes(config, config.heads.head_dim_qk) * config.page_tokens *
         config.heads.kv_head_count;
}

constexpr int64_t PageBytes(const PagedConfig& config) {
  return PageKeyBytes(config) +
         PageRowBytes(config, config.heads.head_dim_v) * config.page_tokens *
             config.heads.kv_head_count;
}

constexpr int64_t PagesFor(const PagedConfig& config, int64_t tokens) {
  return (tokens + config.page_tokens - 1) / config.page_tokens;
}

// One sequence of a launch: its new tokens are written to their pages, then its
// queries attend to all keys that they may see, new ones included.
struct PagedSequence {
  // Rows 0...query_length - 1 are the sequence's last tokens: the mask's
  // diagonal is that of M = query_length and N = key_length.
  const void* query = nullptr;   // [M, query_head_count, head_dim_qk]
  void* output = nullptr;        // [M, query_head_count, head_dim_v]
  float* log_sum_exp = nullptr;  // [M, query_head_count]; may be null
  TensorStrides query_strides;
  TensorStrides output_strides;
  int64_t log_sum_exp_token_stride = 0;  // elements
  int64_t log_sum_exp_head_stride = 0;   // elements
  int64_t query_length = 0;              // M; 0: nothing is attended

  // Keys and values of tokens key_length - append_length...key_length - 1, to
  // be written to the pages; those before are there already.
  const void* new_key = nullptr;    // [append_length, kv_head_count, head_dim_qk]
  const void* new_value = nullptr;  // [append_length, kv_head_count, head_dim_v]
  TensorStrides new_key_strides;
  TensorStrides new_value_strides;
  int64_t append_length = 0;

  // Page p has tokens p * page_tokens and up. Aligned to 256 bytes. In host
  // memory; an entry whose tokens no query sees and that is not written may be
  // null.
  void* const* pages = nullptr;  // [PagesFor(key_length)]
  int64_t key_length = 0;        // N, new tokens included

  // Only keys of [key_begin, key_end) are seen; 0 <= begin <= end <= N.
  int64_t key_begin = 0;
  int64_t key_end = 0;

  double scale = 1.0;  // any finite value
  int64_t window_left = kUnlimitedWindow;
  int64_t window_right = kUnlimitedWindow;
  // Keys before this position are seen whatever the left bound of the window
  // says ("attention sinks"); masks and key ranges hold for them too.
  int64_t sink_tokens = 0;

  // kFloat8E4M3 only: finite, more than 0, of each K/V head. Host memory.
  const float* key_scales = nullptr;    // [kv_head_count]
  const float* value_scales = nullptr;  // [kv_head_count]
};

// Copies whole pages, before anything is appended.
struct PageCopy {
  const void* from = nullptr;
  void* to = nullptr;
};

// One launch: a ragged batch. Appends come first, whatever the order here, and
// may go to a page of which other sequences of the launch see tokens: those
// before, or the new ones too if their key_length includes them.
struct PagedParams {
  PagedConfig config;
  const PagedSequence* sequences = nullptr;  // [sequence_count], host memory
  int64_t sequence_count = 0;                // 0 is legal
  const PageCopy* copies = nullptr;          // [copy_count], host memory
  int64_t copy_count = 0;
};

}  // namespace attention

#endif  // ATTENTION_KERNELS_PAGED_PARAMS_H_
