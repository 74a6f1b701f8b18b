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

BlockList MakeBlocks(const AttentionParams& params, int64_t rows_per_block,
                     bool split_keys) {
  const HeadConfig& config = params.config;
  BlockList list;
  if (config.query_head_count == 0) return list;
  const int64_t group = config.query_head_count / config.kv_head_count;
  for (int64_t i = 0; i < params.sequence_count; ++i) {
    const Sequence& s = params.sequences[i];
    const MaskBand band = MakeMaskBand(config.mask, s);
    const int64_t rows = s.query_length * group;
    const int64_t row_blocks = (rows + rows_per_block - 1) / rows_per_block;
    const bool split =
        split_keys && row_blocks * config.kv_head_count < kEnoughBlocks;
    for (int64_t kv_head = 0; kv_head < config.kv_head_count; ++kv_head) {
      for (int64_t row = 0; row < rows; row += rows_per_block) {
        const int64_t row_end = std::min(row + rows_per_block, rows);
        const KeyRange keys =
            band.VisibleKeys(row / group, (row_end - 1) / group);
        Block block = {&s, kv_head, row, row_end, keys, kWholeRange};
        const int64_t step = split ? SplitKeys(keys) : 0;
        if (!split || keys.begin / step >= (keys.end - 1) / step) {
          list.blocks.push_back(block);
          continue;
        }
        const int64_t first = static_cast<int64_t>(list.blocks.size());
        int64_t key = keys.begin;
        while (key < keys.end) {
          const int64_t key_end = std::min((key / step + 1) * step, keys.end);
          block.keys = {key, key_end};
          block.partial_offset = list.partial_floats;
          list.partial_floats += (row_end - row) * (config.head_dim_v + 2);
          list.blocks.push_back(block);
          key = key_end;
        }
        list.splits.push_back(
            {first, static_cast<int64_t>(list.blocks.size())});
      }
    }
  }
  list.order.resize(list.blocks.size());
  std::iota(list.order.begin(), list.order.end(), int64_t{0});
  std::stable_sort(list.order.begin(), list.order.end(),
                   [&](int64_t x, int64_t y) {
                     return Cost(list.blocks[x]) > Cost(list.blocks[y]);
                   });
  return list;
}

}  // namespace attention::cpu
