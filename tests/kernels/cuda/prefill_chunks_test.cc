// The sm_90 kernels where the keys of few queries are cut into chunks, whose
// partial results are merged.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/cuda/cut_alignment.h"
#include "kernels/cuda/sm90/shape.h"
#include "tests/kernels/cuda/prefill_fixture.h"
#include "tests/support/comparison.h"

namespace attention::test {
namespace {

using cuda::kMaxChunkedQueries;
using cuda::sm90::kMaxChunks;
using cuda::sm90::Shape;

class PrefillChunksTest : public PrefillTest {
 protected:
  ProblemSpec Spec(const HeadConfig& config,
                   std::vector<SequenceSpec> sequences) {
    ProblemSpec spec{.config = config, .sequences = std::move(sequences)};
    spec.layout = Draw(0, 1) ? Layout::kTokenMajor : Layout::kHeadMajor;
    spec.log_sum_exp = Draw(0, 3) > 0;
    spec.seed = random()();
    return spec;
  }

  static Sequence Lengths(int64_t query_length, int64_t key_length) {
    Sequence s;
    s.query_length = query_length;
    s.key_length = key_length;
    return s;
  }
  static int64_t ChunkCount(const HeadConfig& config, int64_t m, int64_t n) {
    return Shape(config, KernelFor(config, m, n)).ChunkCount(Lengths(m, n));
  }
  // Keys of a chunk, in sequences of not so many that chunks grow.
  static int64_t ChunkKeys(const HeadConfig& config, int64_t m) {
    const auto& kernel = KernelFor(config, m);
    return Shape(config, kernel).ChunkSteps(Lengths(m, 1)) * kernel.block_n;
  }
};

TEST_P(PrefillChunksTest, LengthsAroundChunks) {
  ForEachKernel([&](DataType type, HeadDims dims) {
    const HeadConfig config = Heads(type, dims, 1, 1, Pick(kMasks));
    std::vector<SequenceSpec> sequences;
    for (int64_t m : {int64_t{1}, Draw(2, 40), kMaxChunkedQueries}) {
      const int64_t keys = ChunkKeys(config, m);
      EXPECT_EQ(ChunkCount(config, m, keys), 0);
      EXPECT_EQ(ChunkCount(config, m, keys + 1), 2);
      for (int64_t n : {keys, keys + 1, 2 * keys - 1, 2 * keys, 2 * keys + 1,
                        3 * keys + Draw(2, keys)}) {
        sequences.push_back({m, n});
      }
    }
    constexpr int64_t kWhole = kMaxChunkedQueries + 1;
    EXPECT_EQ(ChunkCount(config, kWhole, 2000), 0);
    sequences.push_back({kWhole, 2000});
    Check(Spec(config, sequences));
  });
}

// As many chunks as there are at most, and chunks that are longer for that.
TEST_P(PrefillChunksTest, ManyKeys) {
  ForEachKernel([&](DataType type, HeadDims dims) {
    const HeadConfig config = Heads(type, dims, 2, 1, Pick(kMasks));
    const int64_t m = Draw(1, 3);
    const int64_t most = kMaxChunks * ChunkKeys(config, m);
    EXPECT_EQ(ChunkCount(config, m, most), kMaxChunks);
    EXPECT_LT(ChunkCount(config, m, most + 1), kMaxChunks);
    Check(Spec(config, {{m, most}, {m, most + 1}, {m, most + Draw(2, 9999)}}));
  });
}

// Packed query heads are rows like others; up to several tiles of them.
TEST_P(PrefillChunksTest, GroupsOfHeads) {
  ForEachKernel([&](DataType type, HeadDims dims) {
    for (int32_t group : {2, 3, 8, 64}) {
      const HeadConfig config = Heads(type, dims, 2 * group, 2, Pick(kMasks));
      const int64_t m = group == 64 ? Draw(1, 4) : Draw(1, 20);
      const int64_t n = ChunkKeys(config, m) + Draw(1, 100);
      EXPECT_GT(ChunkCount(config, m, n), 0);
      Check(Spec(config, {{m, n}, {1, n}}));
    }
  });
}

// Rows that see keys of some chunks only, or of none.
TEST_P(PrefillChunksTest, Windows) {
  ForEachKernel([&](DataType type, HeadDims dims) {
    for (MaskKind mask : kMasks) {
      const HeadConfig config = Heads(type, dims, 2, 1, mask);
      const int64_t n = 3 * ChunkKeys(config, 16) + Draw(1, 99);
      std::vector<SequenceSpec> sequences;
      for (int64_t left : {kUnlimitedWindow, int64_t{0}, Draw(1, n)}) {
        for (int64_t right : {kUnlimitedWindow, int64_t{0}, Draw(1, n)}) {
          const int64_t m = Draw(1, 16);
          EXPECT_GT(ChunkCount(config, m, n), 0);
          sequences.push_back({m, n, {}, left, right});
        }
      }
      Check(Spec(config, sequences));
    }
  });
}

// The comparison checks that NaN stands exactly where the reference has it.
TEST_P(PrefillChunksTest, NonFiniteElementsStayInTheRowsThatSeeThem) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  ForEachKernel([&](DataType type, HeadDims dims) {
    for (MaskKind mask : kMasks) {
      const HeadConfig config = Heads(type, dims, 2, 1, mask);
      const int64_t m = Draw(10, 16);
      const int64_t n = 2 * ChunkKeys(config, m) + Draw(1, 99);
      AttentionProblem problem(
          Spec(config, {{m, n}, {m, n, {}, 40, 5}, {m, n}}));
      for (int64_t sequence : {0, 1}) {
        // Among the keys that causal rows differ in, and anywhere.
        for (int64_t key :
             {mask == MaskKind::kCausalTopLeft ? Draw(0, m - 1)
                                               : Draw(n - m, n - 1),
              Draw(0, n - 1)}) {
          const auto dim = static_cast<int32_t>(Draw(0, dims.v - 1));
          problem.Set(TensorRole::kValue, sequence, key, 0, dim,
                      Draw(0, 1) ? kNan : kInfinity);
        }
      }
      problem.Set(TensorRole::kKey, 2, Draw(0, n - 1), 0, 3, kNan);
      problem.Set(TensorRole::kQuery, 2, Draw(0, m - 1), 1, 3, kNan);
      Check(problem);
    }
  });
}

// Cut and whole sequences together, so many that their list is in memory, have
// the bits that each has alone.
TEST_P(PrefillChunksTest, BatchMatesDoNotMatter) {
  ForEachKernel([&](DataType type, HeadDims dims) {
    std::vector<SequenceSpec> sequences;
    for (int i = 0; i < 70; ++i) {
      sequences.push_back(
          {Draw(1, 100), Draw(0, 2) ? Draw(1, 300) : Draw(600, 1500)});
    }
    const HeadConfig config = Heads(type, dims, 2, 1, Pick(kMasks));
    AttentionProblem problem(Spec(config, sequences));
    const std::vector<Bits> together = ComputeBits(problem);
    DeviceProblem device(problem);
    for (int i = 0; i < 70; ++i) {
      const AttentionParams all = device.params();
      const AttentionParams alone = {config, all.sequences + i, 1};
      ASSERT_NO_FATAL_FAILURE(device.ClearOutputs());
      DeviceScratch scratch;
      ASSERT_EQ(scratch.Allocate(kPrefill.scratch_size(alone)),
                absl::OkStatus());
      ASSERT_EQ(kPrefill.launch(alone, scratch.get(), nullptr), cudaSuccess);
      ASSERT_NO_FATAL_FAILURE(device.CopyOut());
      EXPECT_TRUE(problem.OutputBits(i) == together[i])
          << "sequence " << i << ", " << sequences[i].query_length << "x"
          << sequences[i].key_length << " of " << ToString(problem.spec());
    }
  });
}

INSTANTIATE_FOR_CUDA(PrefillChunksTest);

}  // namespace
}  // namespace attention::test
