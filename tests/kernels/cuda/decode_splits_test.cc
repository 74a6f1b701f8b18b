// How the keys of a launch of paged attention are cut; needs no GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "kernels/cuda/decode/splits.h"
#include "kernels/mask.h"

namespace attention::cuda::decode {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kTileTokens = 64;

class SplitsTest : public testing::TestWithParam<SplitPolicy> {
 protected:
  SplitsTest() {
    params.config = {.heads = {.data_type = DataType::kBFloat16,
                               .head_dim_qk = 128,
                               .head_dim_v = 128,
                               .query_head_count = 16,
                               .kv_head_count = 8,
                               .mask = MaskKind::kCausalBottomRight},
                     .split_policy = SplitPolicy::kBalanced};
  }

  PagedSequence& Add(int64_t query_length, int64_t key_length) {
    PagedSequence s;
    s.query_length = query_length;
    s.key_length = s.key_end = key_length;
    sequences.push_back(s);
    return sequences.back();
  }

  std::vector<Splits::Entry> Cut() {
    params.sequences = sequences.data();
    params.sequence_count = std::ssize(sequences);
    return Splits(params).entries();
  }

  // The only entry of a sequence that is cut by itself.
  Chunks CutAlone() {
    const auto entries = Cut();
    EXPECT_EQ(entries.size(), 1u);
    return entries[0].chunks;
  }

  // Every visible key of every sequence is in exactly one of its chunks, and
  // chunks begin and end with tiles.
  void ExpectCoversEveryVisibleKeyOnce() {
    const auto entries = Cut();
    std::set<int64_t> seen;
    for (const Splits::Entry& entry : entries) {
      const PagedSequence& s = sequences[entry.sequence];
      EXPECT_TRUE(seen.insert(entry.sequence).second);
      EXPECT_EQ(entry.rows, s.query_length * 2);
      EXPECT_EQ(entry.table, entry.rows > kFewRowsTile);
      const Chunks& c = entry.chunks;
      EXPECT_GT(c.tokens, 0);
      EXPECT_EQ(c.tokens % kTileTokens, 0);
      std::vector<int> count(s.key_length);
      std::set<int64_t> chunks;
      for (int64_t split = 0; split < c.splits; ++split) {
        const int64_t chunk = split < c.sinks
                                  ? c.first_sink + split
                                  : c.first_window + split - c.sinks;
        EXPECT_TRUE(chunks.insert(chunk).second);
        for (int64_t key = chunk * c.tokens;
             key < std::min((chunk + 1) * c.tokens, s.key_length); ++key) {
          ++count[key];
        }
      }
      const SinkMask mask = MakeSinkMask(params.config.heads.mask, s);
      for (const MaskBand* band : {&mask.sinks, &mask.window}) {
        const KeyRange keys = band->VisibleKeys(0, s.query_length - 1);
        for (int64_t key = keys.begin; key < keys.end; ++key) {
          ASSERT_EQ(count[key], 1) << "sequence " << entry.sequence << " key "
                                   << key << " of " << s.key_length;
        }
      }
    }
    for (int64_t i = 0; i < std::ssize(sequences); ++i) {
      EXPECT_EQ(seen.contains(i), sequences[i].query_length > 0);
    }
  }

  PagedParams params;
  std::vector<PagedSequence> sequences;
};

TEST_P(SplitsTest, EveryVisibleKeyIsInOneChunk) {
  params.config.split_policy = GetParam();
  for (int64_t length : {0, 1, 63, 64, 65, 4096, 20001, 131072}) {
    Add(1, length);
    Add(std::min<int64_t>(length, 40), length);
    Add(1, length).sink_tokens = 4;
    PagedSequence& window = Add(2, length);
    window.window_left = 3000;
    window.sink_tokens = 130;
    PagedSequence& part = Add(1, length);
    part.key_begin = length / 3;
    part.key_end = length / 2;
    Add(0, length);
  }
  ExpectCoversEveryVisibleKeyOnce();
}

TEST_P(SplitsTest, NothingToAttend) {
  params.config.split_policy = GetParam();
  EXPECT_TRUE(Cut().empty());
  Add(0, 100);
  EXPECT_TRUE(Cut().empty());
  Add(1, 100);
  params.config.heads.query_head_count = params.config.heads.kv_head_count = 0;
  EXPECT_TRUE(Cut().empty());
}

INSTANTIATE_TEST_SUITE_P(Policies, SplitsTest,
                         testing::Values(SplitPolicy::kFixed,
                                         SplitPolicy::kBalanced),
                         [](const auto& info) {
                           return info.param == SplitPolicy::kFixed
                                      ? "Fixed"
                                      : "Balanced";
                         });

TEST_F(SplitsTest, FixedSplitsDoNotDependOnMates) {
  params.config.split_policy = SplitPolicy::kFixed;
  Add(1, 30000);
  const Chunks alone = CutAlone();
  EXPECT_GT(alone.splits, 1);
  for (int i = 0; i < 500; ++i) Add(1, 4096);
  const auto entries = Cut();
  EXPECT_EQ(entries[0].sequence, 0);
  EXPECT_EQ(entries[0].chunks.tokens, alone.tokens);
  EXPECT_EQ(entries[0].chunks.splits, alone.splits);
}

// 64 sequences of 8 heads are enough work for every multiprocessor: to cut them
// would only add results to merge.
TEST_F(SplitsTest, ManyEqualSequencesStayWhole) {
  for (int i = 0; i < 64; ++i) Add(1, 4096);
  for (const auto& entry : Cut()) EXPECT_EQ(entry.chunks.splits, 1);
}

// 32 x 8 chunks of 512 KiB: one for each of 264 blocks.
TEST_F(SplitsTest, OneSequenceIsCutForAllBlocks) {
  Add(1, 32768);
  EXPECT_EQ(CutAlone().splits, 32);
}

TEST_F(SplitsTest, AShortSequenceIsNotCutBelowTheLeastChunk) {
  Add(1, 512);
  EXPECT_EQ(CutAlone().splits, 1);
  sequences.clear();
  Add(1, 4096);
  EXPECT_EQ(CutAlone().splits, 8);  // of 256 KiB
}

// 34 x 8 whole heads are one more round for 8 of them.
TEST_F(SplitsTest, ARestIsSharedOut) {
  for (int i = 0; i < 34; ++i) Add(1, 4096);
  for (const auto& entry : Cut()) EXPECT_GT(entry.chunks.splits, 1);
}

TEST_F(SplitsTest, ALongSequenceAmongShortOnesIsCutAndComesFirst) {
  for (int i = 0; i < 63; ++i) Add(1, 1024);
  Add(1, 131072);
  const auto entries = Cut();
  EXPECT_EQ(entries[0].sequence, 63);
  EXPECT_GE(entries[0].chunks.splits, 16);
  for (size_t i = 1; i < entries.size(); ++i) {
    EXPECT_EQ(entries[i].chunks.splits, 1);
  }
}

// A chunk of a sequence that sees all of 64 MiB a head would be longer than all
// that the other blocks have.
TEST_F(SplitsTest, NoChunkIsLongerThanTheShareOfABlock) {
  for (int64_t length : {100, 131072, 3000, 77, 9000, 20000}) Add(1, length);
  int64_t bytes = 0;
  for (const PagedSequence& s : sequences) bytes += s.key_length * 512 * 8;
  for (const auto& entry : Cut()) {
    EXPECT_LE(entry.chunks.tokens * 512, bytes / 264 + kMiB / 4);
  }
}

TEST_F(SplitsTest, OnlyVisibleKeysCount) {
  Add(1, 131072).window_left = 511;
  EXPECT_LE(CutAlone().splits, 2);
}

}  // namespace
}  // namespace attention::cuda::decode
