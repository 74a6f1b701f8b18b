// How a computation is cut into units of work for the thread pool.
//
// The cut depends only on each sequence's own shape, never on the number of
// threads or on the other sequences, so that every answer is bitwise
// reproducible. Rows are the (query, head) pairs that share one K/V head,
// numbered query * group_size + head_in_group.
#ifndef ATTENTION_KERNELS_CPU_BLOCKS_H_
#define ATTENTION_KERNELS_CPU_BLOCKS_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kernels/attention_params.h"
#include "kernels/mask.h"

namespace attention::cpu {

// Some rows of one K/V head against a range of keys.
struct Block {
  const Sequence* sequence;
  int64_t kv_head;
  int64_t row_begin;
  int64_t row_end;
  // From the first to the last key that a row sees, of this block's share.
  KeyRange keys;

  // Where the unnormalised result goes, [row_end - row_begin][head_dim_v + 2]
  // (accumulator, max, sum), in floats from the start of a workspace; or
  // kWholeRange if the block covers all visible keys of its rows.
  int64_t partial_offset;
};

inline constexpr int64_t kWholeRange = -1;

// Consecutive blocks [begin, end) of a list that share rows and have one
// partial result each.
struct SplitRows {
  int64_t begin;
  int64_t end;
};

struct BlockList {
  std::vector<Block> blocks;
  std::vector<SplitRows> splits;
  std::vector<int32_t> order;  // of blocks: most expensive first
  int64_t partial_floats = 0;  // size of the workspace
};

// Bounds of one list, whatever the shapes: a thread count's worth of blocks
// many times over, so that the wait at the end of a list does not show, and few
// enough that lists and workspaces are small beside any tensor that matters.
inline constexpr int64_t kMaxListBlocks = 16384;
inline constexpr int64_t kMaxListPartialFloats = 8 << 20;

// What a sequence of the batch sees.
using MaskOf = absl::FunctionRef<SinkMask(const Sequence& sequence)>;

// Deals out the blocks of a batch, at most `rows_per_block` rows each, list by
// list. If `split_keys`, sequences that make few blocks are also cut along the
// keys; the blocks that share rows are never in different lists.
class BlockDealer {
 public:
  BlockDealer(const AttentionParams& params, MaskOf mask_of,
              int64_t rows_per_block, bool split_keys);

  // Replaces the contents of `list`. Returns false when no blocks are left.
  bool Deal(BlockList& list);

  // Whether the last list was the last.
  bool done() const { return sequence_ == params_.sequence_count; }

 private:
  // Adds the blocks of the next rows, unless the list has no room for them.
  bool DealRows(BlockList& list);

  const AttentionParams& params_;
  const MaskOf mask_of_;
  const int64_t rows_per_block_;
  const bool split_keys_;
  // The rows that come next.
  int64_t sequence_ = 0;
  int64_t kv_head_ = 0;
  int64_t row_ = 0;
};

}  // namespace attention::cpu

#endif  // ATTENTION_KERNELS_CPU_BLOCKS_H_
