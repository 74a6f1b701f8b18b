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

int64_t Count(KeyRange keys) {
  return std::max<int64_t>(keys.end - keys.begin, 0);
}

// What some rows see, cut into pieces. Boundaries are multiples of a step
// counted from key 0, which depends only on the number of visible keys, so keys
// that are masked change nothing. None lies between the sinks and the window.
class Pieces {
 public:
  Pieces(KeyRange sinks, KeyRange window, bool split)
      : sinks_(Count(sinks) > 0 ? sinks : window),
        window_(Count(window) > 0 || Count(sinks) == 0 ? window : sinks) {
    const int64_t seen = Count(sinks) + Count(window);
    if (!split || seen <= kMinSplitKeys) {
      step_ = std::max<int64_t>(window_.end, 1);
      return;
    }
    step_ = kMinSplitKeys;
    while (step_ * kEnoughBlocks < seen) step_ *= 2;
  }

  // The first piece; empty if nothing is seen.
  KeyRange First() const { return From(sinks_.begin); }

  bool IsLast(KeyRange piece) const { return piece.end >= window_.end; }

  // The one after `piece`, which is not the last.
  KeyRange Next(KeyRange piece) const {
    const bool in_gap = piece.end >= sinks_.end && piece.end < window_.begin;
    return From(in_gap ? window_.begin : piece.end);
  }

 private:
  KeyRange From(int64_t key) const {
    const int64_t end = std::min((key / step_ + 1) * step_, window_.end);
    const bool in_gap = end > sinks_.end && end <= window_.begin;
    return {key, in_gap ? sinks_.end : end};
  }

  KeyRange sinks_;
  KeyRange window_;
  int64_t step_;
};

int64_t Cost(const Block& block) {
  return (block.row_end - block.row_begin) *
         std::max<int64_t>(block.keys.end - block.keys.begin, 0);
}

}  // namespace

BlockDealer::BlockDealer(const AttentionParams& params, MaskOf mask_of,
                         int64_t rows_per_block, bool split_keys)
    : params_(params),
      mask_of_(mask_of),
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
  const int64_t first_query = row_ / group;
  const int64_t last_query = (row_end - 1) / group;
  const SinkMask mask = mask_of_(s);
  const Pieces pieces(mask.sinks.VisibleKeys(first_query, last_query),
                      mask.window.VisibleKeys(first_query, last_query), split);
  int64_t piece_count = 1;
  for (KeyRange keys = pieces.First(); !pieces.IsLast(keys);
       keys = pieces.Next(keys)) {
    ++piece_count;
  }
  const int64_t piece_floats =
      piece_count == 1 ? 0 : (row_end - row_) * (config.head_dim_v + 2);
  const int64_t first = static_cast<int64_t>(list.blocks.size());
  if (first > 0 && (first + piece_count > kMaxListBlocks ||
                    list.partial_floats + piece_count * piece_floats >
                        kMaxListPartialFloats)) {
    return false;
  }
  KeyRange keys = pieces.First();
  for (int64_t i = 0; i < piece_count; ++i) {
    list.blocks.push_back(
        {&s, kv_head_, row_, row_end, keys,
         piece_count == 1 ? kWholeRange : list.partial_floats});
    list.partial_floats += piece_floats;
    if (!pieces.IsLast(keys)) keys = pieces.Next(keys);
  }
  if (piece_count > 1) list.splits.push_back({first, first + piece_count});

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
