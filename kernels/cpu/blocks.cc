#include "kernels/cpu/blocks.h"

#include <algorithm>
#include <numeric>

namespace attention::cpu {
namespace {

// A sequence that makes fewer blocks than this is cut along the keys as well:
// enough for the largest machines to find work in a single request.
constexpr int64_t kEnoughBlocks = 64;

// Shorter ranges are not worth a second pass that merges.
constexpr int64_t kMinSplitKeys = 1024;

// Keys per block. Boundaries are multiples of this counted from key 0 and it
// depends only on the visible keys, so keys that are masked change nothing.
int64_t SplitKeys(KeyRange visible) {
  int64_t keys = kMinSplitKeys;
  while (keys * kEnoughBlocks < visible.end - visible.begin) keys *= 2;
  return keys;
}

int64_t Cost(const Block& block) {
  return (block.row_end - block.row_begin) *
         std::max<int64_t>(block.keys.end - block.keys.begin, 0);
}

}  // namespace

BlockDealer::BlockDealer(const AttentionParams& params, int64_t rows_per_block,
                         bool split_keys)
    : params_(params),
      rows_per_block_(rows_per_block),
      split_keys_(split_keys),
      sequence_(params.config.query_head_count == 0 ? params.sequence_count
                                                    : 0) {}

bool BlockDealer::Deal(BlockList& list) {
  list.blocks.clear();
  list.splits.clear();
  list.partial_floats = 0;
  while (!done() && DealRows(list)) {
  }
  list.order.resize(list.blocks.size());
  std::iota(list.order.begin(), list.order.end(), int32_t{0});
  const auto more_expensive = [&](int32_t x, int32_t y) {
    return Cost(list.blocks[x]) > Cost(list.blocks[y]);
  };
  // Equal blocks, the common case, need no sorting.
  if (!std::is_sorted(list.order.begin(), list.order.end(), more_expensive)) {
    std::sort(list.order.begin(), list.order.end(), more_expensive);
  }
  return !list.blocks.empty();
}

bool BlockDealer::DealRows(BlockList& list) {
  const HeadConfig& config = params_.config;
  const Sequence& s = params_.sequences[sequence_];
  if (s.query_length == 0) {
    ++sequence_;
    return true;
  }
  const int64_t group = config.query_head_count / config.kv_head_count;
  const int64_t rows = s.query_length * group;
  const int64_t row_blocks = (rows + rows_per_block_ - 1) / rows_per_block_;
  const bool split =
      split_keys_ && row_blocks * config.kv_head_count < kEnoughBlocks;
  const int64_t row_end = std::min(row_ + rows_per_block_, rows);
  const KeyRange keys = MakeMaskBand(config.mask, s)
                            .VisibleKeys(row_ / group, (row_end - 1) / group);
  const int64_t step = split ? SplitKeys(keys) : 0;
  const int64_t pieces = split && keys.begin < keys.end
                             ? (keys.end - 1) / step - keys.begin / step + 1
                             : 1;
  const int64_t piece_floats =
      pieces == 1 ? 0 : (row_end - row_) * (config.head_dim_v + 2);
  const int64_t first = static_cast<int64_t>(list.blocks.size());
  if (first > 0 &&
      (first + pieces > kMaxListBlocks ||
       list.partial_floats + pieces * piece_floats > kMaxListPartialFloats)) {
    return false;
  }
  if (pieces == 1) {
    list.blocks.push_back({&s, kv_head_, row_, row_end, keys, kWholeRange});
  } else {
    for (int64_t key = keys.begin; key < keys.end;) {
      const int64_t key_end = std::min((key / step + 1) * step, keys.end);
      list.blocks.push_back(
          {&s, kv_head_, row_, row_end, {key, key_end}, list.partial_floats});
      list.partial_floats += piece_floats;
      key = key_end;
    }
    list.splits.push_back({first, first + pieces});
  }

  row_ = row_end;
  if (row_ == rows) {
    row_ = 0;
    ++kv_head_;
  }
  if (kv_head_ == config.kv_head_count) {
    kv_head_ = 0;
    ++sequence_;
  }
  return true;
}

}  // namespace attention::cpu
