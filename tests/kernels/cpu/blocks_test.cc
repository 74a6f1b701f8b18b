#include "kernels/cpu/blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <vector>

namespace attention::cpu {
namespace {

constexpr int64_t kRowsPerBlock = 96;

int64_t Cost(const Block& block) {
  return (block.row_end - block.row_begin) *
         std::max<int64_t>(block.keys.end - block.keys.begin, 0);
}

AttentionParams Params(const std::vector<Sequence>& sequences, int32_t heads,
                       MaskKind mask = MaskKind::kNone) {
  return {.config = {.head_dim_qk = 1,
                     .head_dim_v = kMaxHeadDim,
                     .query_head_count = heads,
                     .kv_head_count = heads,
                     .mask = mask},
          .sequences = sequences.data(),
          .sequence_count = static_cast<int64_t>(sequences.size())};
}

Sequence Lengths(int64_t queries, int64_t keys) {
  Sequence s;
  s.query_length = queries;
  s.key_length = keys;
  return s;
}

// What does not depend on the shapes: the bounds of a list, an order that names
// every block once and begins with the longest, and a workspace in which no two
// blocks overlap.
void CheckList(const BlockList& list, int32_t head_dim_v) {
  const int64_t count = static_cast<int64_t>(list.blocks.size());
  ASSERT_GT(count, 0);
  EXPECT_LE(count, kMaxListBlocks);
  EXPECT_LE(list.partial_floats, kMaxListPartialFloats);
  std::vector<int32_t> order = list.order;
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end(), [&](int x, int y) {
    return Cost(list.blocks[x]) > Cost(list.blocks[y]);
  }));
  std::sort(order.begin(), order.end());
  std::vector<int32_t> all(count);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(order, all);
  int64_t offset = 0;
  for (const Block& block : list.blocks) {
    if (block.partial_offset == kWholeRange) continue;
    EXPECT_EQ(block.partial_offset, offset);
    offset += (block.row_end - block.row_begin) * (head_dim_v + 2);
  }
  EXPECT_EQ(list.partial_floats, offset);
  for (const SplitRows& split : list.splits) {
    ASSERT_LT(split.begin + 1, split.end);
    ASSERT_LE(split.end, count);
    for (int64_t i = split.begin; i < split.end; ++i) {
      const Block& first = list.blocks[split.begin];
      const Block& block = list.blocks[i];
      EXPECT_NE(block.partial_offset, kWholeRange);
      EXPECT_EQ(std::tie(block.sequence, block.kv_head, block.row_begin),
                std::tie(first.sequence, first.kv_head, first.row_begin));
    }
  }
}

// Deals everything; returns the number of lists. Every row must get exactly the
// keys that its block sees, in order.
int CheckDeal(const AttentionParams& params, bool split_keys) {
  const auto mask_of = [&](const Sequence& s) {
    return MakeSinkMask(params.config.mask, s);
  };
  BlockDealer dealer(params, mask_of, kRowsPerBlock, split_keys);
  using Rows = std::tuple<const Sequence*, int64_t, int64_t>;
  std::map<Rows, std::vector<Block>> dealt;
  BlockList list;
  int lists = 0;
  bool done = dealer.done();
  while (dealer.Deal(list)) {
    EXPECT_FALSE(done) << "a list after the last";
    done = dealer.done();
    ++lists;
    CheckList(list, params.config.head_dim_v);
    if (testing::Test::HasFailure()) return lists;
    int64_t split_blocks = 0;
    for (const SplitRows& split : list.splits) {
      split_blocks += split.end - split.begin;
    }
    for (const Block& block : list.blocks) {
      dealt[{block.sequence, block.kv_head, block.row_begin}].push_back(block);
      split_blocks -= block.partial_offset != kWholeRange;
    }
    EXPECT_EQ(split_blocks, 0) << "a partial result that nothing merges";
  }
  EXPECT_TRUE(dealer.done());
  size_t want_rows = 0;
  for (int64_t i = 0; i < params.sequence_count; ++i) {
    const Sequence& s = params.sequences[i];
    const MaskBand band = MakeMaskBand(params.config.mask, s);
    for (int64_t head = 0; head < params.config.kv_head_count; ++head) {
      for (int64_t row = 0; row < s.query_length; row += kRowsPerBlock) {
        ++want_rows;
        const auto found = dealt.find({&s, head, row});
        if (found == dealt.end()) {
          ADD_FAILURE() << "rows left out";
          return lists;
        }
        const std::vector<Block>& blocks = found->second;
        const int64_t row_end = std::min(row + kRowsPerBlock, s.query_length);
        const KeyRange seen = band.VisibleKeys(row, row_end - 1);
        EXPECT_EQ(blocks.back().keys.end, seen.end);
        for (size_t b = 0; b < blocks.size(); ++b) {
          EXPECT_EQ(blocks[b].row_end, row_end);
          const int64_t begin = b == 0 ? seen.begin : blocks[b - 1].keys.end;
          EXPECT_EQ(blocks[b].keys.begin, begin);
        }
      }
    }
  }
  EXPECT_EQ(dealt.size(), want_rows);
  return lists;
}

TEST(BlockDealerTest, NothingToDeal) {
  EXPECT_EQ(CheckDeal(Params({}, 4), true), 0);
  EXPECT_EQ(CheckDeal(Params({Lengths(5, 5)}, 0), true), 0);
  const std::vector<Sequence> no_queries(3, Lengths(0, 7));
  EXPECT_EQ(CheckDeal(Params(no_queries, 4), true), 0);
}

TEST(BlockDealerTest, HeadsOfSequencesWithoutQueriesAreNotVisited) {
  const std::vector<Sequence> sequences(100000, Lengths(0, 7));
  const AttentionParams params =
      Params(sequences, std::numeric_limits<int32_t>::max());
  const auto mask_of = [&](const Sequence& s) {
    return MakeSinkMask(params.config.mask, s);
  };
  BlockDealer dealer(params, mask_of, kRowsPerBlock, /*split_keys=*/true);
  BlockList list;
  EXPECT_FALSE(dealer.Deal(list));
}

TEST(BlockDealerTest, SmallBatchesAreOneList) {
  const std::vector<Sequence> sequences = {Lengths(200, 300), Lengths(0, 9),
                                           Lengths(1, 5000),  Lengths(96, 0),
                                           Lengths(97, 1),    Lengths(0, 0)};
  for (MaskKind mask : {MaskKind::kNone, MaskKind::kCausalTopLeft,
                        MaskKind::kCausalBottomRight}) {
    for (bool split_keys : {false, true}) {
      EXPECT_EQ(CheckDeal(Params(sequences, 3, mask), split_keys), 1);
    }
  }
}

TEST(BlockDealerTest, ManyHeadsAreManyLists) {
  const std::vector<Sequence> sequences = {Lengths(2, 2), Lengths(100, 9)};
  for (bool split_keys : {false, true}) {
    EXPECT_EQ(CheckDeal(Params(sequences, 20000), split_keys), 4);
  }
}

TEST(BlockDealerTest, ManyPartialResultsAreManyLists) {
  // 60 row blocks, cut in 64 along the keys: 380 MB of partial results.
  const std::vector<Sequence> sequences = {
      Lengths(60 * kRowsPerBlock, 1 << 30)};
  EXPECT_GT(CheckDeal(Params(sequences, 1), true), 10);
  EXPECT_EQ(CheckDeal(Params(sequences, 1), false), 1);
}

TEST(BlockDealerTest, TheCutDoesNotDependOnTheBatch) {
  const std::vector<Sequence> mates(9000, Lengths(1, 3000));
  std::vector<Sequence> batch = mates;
  batch.push_back(Lengths(300, 70000));
  const AttentionParams together = Params(batch, 2);
  const AttentionParams alone = {together.config, &batch.back(), 1};
  auto blocks_of_last = [&](const AttentionParams& params) {
    std::vector<std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t>> found;
    const auto mask_of = [&](const Sequence& s) {
      return MakeSinkMask(params.config.mask, s);
    };
    BlockDealer dealer(params, mask_of, kRowsPerBlock, /*split_keys=*/true);
    BlockList list;
    while (dealer.Deal(list)) {
      for (const Block& b : list.blocks) {
        if (b.sequence != &batch.back()) continue;
        found.emplace_back(b.kv_head, b.row_begin, b.row_end, b.keys.begin,
                           b.keys.end);
      }
    }
    return found;
  };
  EXPECT_GT(blocks_of_last(alone).size(), 8u);
  EXPECT_EQ(blocks_of_last(together), blocks_of_last(alone));
}

// Keys are seen once each and in order; no block begins, ends or lies between
// the sinks and the window.
TEST(BlockDealerTest, SinksFarBeforeTheWindow) {
  for (int64_t sinks : {0, 4, 1024, 5000}) {
    for (int64_t window : {1, 100, 1500, 200000}) {
      const Sequence s = Lengths(2, 300000);
      PagedSequence paged;
      paged.query_length = s.query_length;
      paged.key_length = paged.key_end = s.key_length;
      paged.window_left = window - 1;
      paged.sink_tokens = sinks;
      const SinkMask mask = MakeSinkMask(MaskKind::kCausalBottomRight, paged);
      const std::vector<Sequence> sequences = {s};
      const AttentionParams params = Params(sequences, 1);
      const auto mask_of = [&](const Sequence&) { return mask; };
      const int64_t first_shown = 300000 - 1 - window;  // by the first query
      for (bool split : {false, true}) {
        SCOPED_TRACE(testing::Message() << sinks << " sinks, window " << window
                                        << ", split " << split);
        BlockDealer dealer(params, mask_of, kRowsPerBlock, split);
        BlockList list;
        ASSERT_TRUE(dealer.Deal(list));
        CheckList(list, params.config.head_dim_v);
        EXPECT_TRUE(dealer.done());
        EXPECT_EQ(list.blocks.size() == 1, !split || sinks + window < 1024);
        int64_t next = sinks > 0 ? 0 : first_shown;
        for (const Block& block : list.blocks) {
          EXPECT_EQ(block.keys.begin, next);
          EXPECT_LT(block.keys.begin, block.keys.end);
          EXPECT_TRUE(list.blocks.size() == 1 ||
                      block.keys.end - block.keys.begin <= 4096);
          next = block.keys.end == sinks ? std::max(sinks, first_shown)
                                         : block.keys.end;
        }
        EXPECT_EQ(next, 300000);
      }
    }
  }
}

}  // namespace
}  // namespace attention::cpu
