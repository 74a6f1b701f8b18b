// How the three-step algorithm cuts a batch into pieces; needs no GPU.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "kernels/cuda/three_step/slice.h"
#include "kernels/cuda/three_step/three_step.h"

namespace attention::cuda::three_step {
namespace {

// Addresses are compared and never read.
float* FakeAddress(uintptr_t address) {
  return reinterpret_cast<float*>(address);
}

class SlicePlannerTest : public testing::Test {
 protected:
  SlicePlannerTest() {
    config.data_type = DataType::kBFloat16;
    config.head_dim_qk = config.head_dim_v = 100;
    config.query_head_count = 6;
    config.kv_head_count = 2;
    config.algorithm = Algorithm::kThreeStep;
  }

  void AddSequence(int64_t query_length, int64_t key_length) {
    Sequence s;
    s.query_length = query_length;
    s.key_length = key_length;
    sequences.push_back(s);
  }

  void Plan() {
    const AttentionParams params{config, sequences.data(),
                                 std::ssize(sequences)};
    const SlicePlanner count(params, nullptr, nullptr);
    slices.resize(count.slice_count());
    const SlicePlanner plan(params, slices.data(), kScoresBase);
    EXPECT_EQ(plan.slice_count(), count.slice_count());
    scores_bytes = plan.scores_bytes();
    for (int stage = 0; stage < kStageCount; ++stage) {
      block_count[stage] = plan.block_count(static_cast<Stage>(stage));
      EXPECT_EQ(block_count[stage],
                count.block_count(static_cast<Stage>(stage)));
    }
  }

  // The rows of all slices are those of all sequences, each once, and slices
  // of one turn do not share memory.
  void ExpectCoversEverythingOnce() {
    int64_t rows = 0;
    for (const Sequence& s : sequences) {
      rows += s.query_length * config.query_head_count;
    }
    uintptr_t turn_end = reinterpret_cast<uintptr_t>(kScoresBase);
    for (const Slice& slice : slices) {
      EXPECT_GE(slice.first_head, 0);
      EXPECT_LE(slice.first_head + slice.head_count, config.query_head_count);
      EXPECT_GE(slice.first_query, 0);
      EXPECT_LE(slice.first_query + slice.query_count,
                slice.sequence.query_length);
      EXPECT_EQ(slice.first_query % kTileRows, 0);
      rows -= slice.head_count * slice.query_count;
      if (slice.scores_are_weights) continue;
      const auto begin = reinterpret_cast<uintptr_t>(slice.scores);
      if (slice.starts_turn)
        turn_end = reinterpret_cast<uintptr_t>(kScoresBase);
      EXPECT_GE(slice.score_stride, slice.sequence.key_length);
      EXPECT_EQ(begin % 16, 0u);
      EXPECT_GE(begin, turn_end);
      turn_end = begin + sizeof(float) * slice.head_count * slice.query_count *
                             slice.score_stride;
      EXPECT_LE(turn_end,
                reinterpret_cast<uintptr_t>(kScoresBase) + scores_bytes);
    }
    EXPECT_EQ(rows, 0);
  }

  float* const kScoresBase = FakeAddress(0x10000);
  HeadConfig config;
  std::vector<Sequence> sequences;
  std::vector<Slice> slices;
  size_t scores_bytes = 0;
  int64_t block_count[kStageCount] = {};
};

TEST_F(SlicePlannerTest, NothingToComputeHasNoSlices) {
  Plan();
  EXPECT_TRUE(slices.empty());
  AddSequence(0, 10);
  Plan();
  EXPECT_TRUE(slices.empty());
  EXPECT_EQ(scores_bytes, 0u);
  AddSequence(10, 10);
  config.query_head_count = config.kv_head_count = 0;
  Plan();
  EXPECT_TRUE(slices.empty());
}

TEST_F(SlicePlannerTest, SmallSequencesShareATurn) {
  for (int64_t m : {1, 0, 200, 7}) AddSequence(m, 33);
  Plan();
  ASSERT_EQ(slices.size(), 3u);
  ExpectCoversEverythingOnce();
  for (const Slice& slice : slices) {
    EXPECT_FALSE(slice.starts_turn);
    EXPECT_EQ(slice.head_count, 6);
  }
}

TEST_F(SlicePlannerTest, ATurnEndsWhereTheBudgetDoes) {
  for (int i = 0; i < 5; ++i) AddSequence(4096, 4096);  // 6 * 64 MiB each
  Plan();
  ExpectCoversEverythingOnce();
  EXPECT_LE(scores_bytes, kScoresBudgetBytes);
  int turns = 1;
  for (const Slice& slice : slices) turns += slice.starts_turn;
  EXPECT_EQ(turns, 5);
}

TEST_F(SlicePlannerTest, HeadsOfALongSequenceAreSplit) {
  AddSequence(8192, 8192);  // 256 MiB per head
  Plan();
  ExpectCoversEverythingOnce();
  EXPECT_LE(scores_bytes, kScoresBudgetBytes);
  ASSERT_EQ(slices.size(), 3u);
  EXPECT_EQ(slices[1].first_head, 2);
  EXPECT_EQ(slices[1].head_count, 2);
}

TEST_F(SlicePlannerTest, RowsOfAVeryLongSequenceAreSplit) {
  AddSequence(50000, 50000);  // 10 GB per head
  Plan();
  ExpectCoversEverythingOnce();
  EXPECT_LE(scores_bytes, kScoresBudgetBytes);
  EXPECT_EQ(slices[0].head_count, 1);
  EXPECT_LT(slices[0].query_count, 50000);
}

TEST_F(SlicePlannerTest, AtLeastOneTileOfRowsEvenBeyondTheBudget) {
  AddSequence(1000, int64_t{1} << 30);
  Plan();
  ExpectCoversEverythingOnce();
  EXPECT_EQ(slices[0].query_count, kTileRows);
  EXPECT_EQ(scores_bytes, sizeof(float) * kTileRows << 30);
}

TEST_F(SlicePlannerTest, ReturnedFp32WeightsNeedNoScratch) {
  config.data_type = DataType::kFloat32;
  AddSequence(50000, 50001);
  sequences[0].weights = FakeAddress(0x4000);
  Plan();
  ASSERT_EQ(slices.size(), 1u);
  ExpectCoversEverythingOnce();
  EXPECT_TRUE(slices[0].scores_are_weights);
  EXPECT_EQ(slices[0].scores, sequences[0].weights);
  EXPECT_EQ(slices[0].score_stride, 50001);
  EXPECT_EQ(scores_bytes, 0u);
}

TEST_F(SlicePlannerTest, HowASequenceIsCutDoesNotDependOnItsMates) {
  AddSequence(9000, 9000);
  Plan();
  const std::vector<Slice> alone = slices;
  sequences.insert(sequences.begin(), 3, sequences[0]);
  sequences[0].query_length = 77;
  sequences[1].key_length = 20000;
  Plan();
  ASSERT_GT(slices.size(), alone.size());
  for (size_t i = 0; i < alone.size(); ++i) {
    const Slice& slice = slices[slices.size() - alone.size() + i];
    EXPECT_EQ(slice.first_head, alone[i].first_head);
    EXPECT_EQ(slice.head_count, alone[i].head_count);
    EXPECT_EQ(slice.first_query, alone[i].first_query);
    EXPECT_EQ(slice.query_count, alone[i].query_count);
  }
}

TEST_F(SlicePlannerTest, EveryBlockFindsItsSlice) {
  for (int64_t n : {0, 1, 300, 0, 128}) AddSequence(n / 2 + 1, n);
  Plan();
  const SliceTable table{slices.data(), std::ssize(slices)};
  for (int stage = 0; stage < kStageCount; ++stage) {
    const auto which = static_cast<Stage>(stage);
    std::map<const Slice*, int64_t> blocks;
    for (int64_t block = 0; block < block_count[stage]; ++block) {
      const Slice& slice = table.Find(which, block);
      EXPECT_GE(block, slice.first_block[stage]);
      ++blocks[&slice];
    }
    for (size_t i = 0; i < slices.size(); ++i) {
      const int64_t end = i + 1 < slices.size()
                              ? slices[i + 1].first_block[stage]
                              : block_count[stage];
      EXPECT_EQ(blocks[&slices[i]], end - slices[i].first_block[stage]);
    }
  }
}

}  // namespace
}  // namespace attention::cuda::three_step
