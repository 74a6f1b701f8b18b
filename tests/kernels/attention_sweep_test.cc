// Every backend and algorithm against the float64 reference, over shapes,
// types, masks, windows, layouts and head groupings. What a test does not fix
// is drawn anew in every run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "tests/support/comparison.h"
#include "tests/support/kernel_backend.h"

namespace attention::test {
namespace {

constexpr DataType kDataTypes[] = {DataType::kFloat32, DataType::kFloat16,
                                   DataType::kBFloat16, DataType::kFloat8E4M3};
constexpr MaskKind kMasks[] = {MaskKind::kNone, MaskKind::kCausalTopLeft,
                               MaskKind::kCausalBottomRight};
constexpr Algorithm kAlgorithms[] = {Algorithm::kStreaming,
                                     Algorithm::kThreeStep};
constexpr HeadScales kScales[] = {HeadScales::kNone, HeadScales::kDrawn,
                                  HeadScales::kExtreme};
constexpr int32_t kHeadDims[] = {1,  7,   15,  16,  32,  40,  59,  64,  80,
                                 96, 100, 111, 128, 160, 192, 224, 255, 256};
// Query heads and K/V heads: MHA, GQA, MQA.
constexpr std::pair<int32_t, int32_t> kHeads[] = {
    {1, 1}, {2, 2}, {4, 2}, {6, 2}, {7, 1}, {8, 8}, {5, 5}};

// The shapes of FlashAttention-3's tests.
constexpr std::pair<int64_t, int64_t> kShapes[] = {
    {1, 1},     {64, 128},  {128, 192}, {256, 256}, {239, 1},   {799, 3},
    {113, 203}, {113, 128}, {128, 217}, {113, 211}, {108, 256}, {256, 512},
    {384, 256}, {640, 128}, {512, 256}, {1, 3},     {2, 1},     {511, 1},
    {3, 513},   {307, 256}, {1, 128},   {1, 339},   {3, 1024},  {64, 800},
    {3, 799},   {64, 2048}, {16, 20000}};
constexpr std::pair<int64_t, int64_t> kLargeShapes[] = {
    {1024, 1024}, {1023, 1024}, {1024, 1023}};

class AttentionSweepTest : public KernelTest {
 protected:
  SequenceSpec RandomSequence(int64_t query_length, int64_t key_length,
                              int32_t head_dim) {
    SequenceSpec s{query_length, key_length};
    if (Draw(0, 3) == 0) {
      constexpr double kFactors[] = {0.0, -1.0, 0.25, 1.5};
      s.scale = Pick(kFactors) / std::sqrt(head_dim);
    }
    const auto window = [&] {
      return Draw(0, 2) > 0 ? kUnlimitedWindow
                            : Draw(0, std::max(query_length, key_length));
    };
    s.window_left = window();
    s.window_right = window();
    return s;
  }

  ProblemSpec RandomSpec(std::vector<std::pair<int64_t, int64_t>> shapes) {
    ProblemSpec spec;
    spec.config.data_type = Pick(kDataTypes);
    spec.config.head_dim_qk = Pick(kHeadDims);
    spec.config.head_dim_v =
        Draw(0, 1) ? spec.config.head_dim_qk : Pick(kHeadDims);
    std::tie(spec.config.query_head_count, spec.config.kv_head_count) =
        Pick(kHeads);
    spec.config.mask = Pick(kMasks);
    spec.config.precision = Draw(0, 2) ? Precision::kIeee : Precision::kTf32;
    spec.config.algorithm = Pick(kAlgorithms);
    for (const auto& [m, n] : shapes) {
      spec.sequences.push_back(RandomSequence(m, n, spec.config.head_dim_qk));
    }
    spec.layout = Pick(kAllLayouts);
    spec.log_sum_exp = Draw(0, 3) > 0;
    spec.weights = spec.config.algorithm == Algorithm::kThreeStep && Draw(0, 1);
    spec.scales = Pick(kScales);
    spec.misalignment = Draw(0, 2) ? 0 : Draw(1, 9);
    spec.seed = random()();
    return spec;
  }

  // Fewer heads or smaller ones where the reference would take too long.
  static void LimitCost(ProblemSpec& spec) {
    constexpr double kMaxProducts = 2.5e7;
    HeadConfig& c = spec.config;
    double pairs = 0;
    for (const SequenceSpec& s : spec.sequences) {
      pairs += static_cast<double>(s.query_length) * s.key_length;
    }
    const auto products = [&] {
      return pairs * c.query_head_count * (c.head_dim_qk + c.head_dim_v);
    };
    if (products() > kMaxProducts) {
      c.query_head_count /= c.kv_head_count;
      c.kv_head_count = 1;
    }
    if (products() > kMaxProducts) c.query_head_count = 1;
    if (products() > kMaxProducts) c.head_dim_v = std::min(c.head_dim_v, 40);
    if (products() > kMaxProducts) c.head_dim_qk = std::min(c.head_dim_qk, 59);
  }

  void CheckLimited(ProblemSpec spec) {
    LimitCost(spec);
    CheckLegal(spec);
  }

  // fp8 is for one algorithm only.
  void CheckLegal(ProblemSpec spec) {
    HeadConfig& c = spec.config;
    if (c.data_type == DataType::kFloat8E4M3) {
      c.algorithm = Algorithm::kStreaming;
      spec.weights = false;
    }
    Check(spec);
  }
};

TEST_P(AttentionSweepTest, KnownShapes) {
  for (const auto& shape : kShapes) {
    for (Algorithm algorithm : kAlgorithms) {
      ProblemSpec spec = RandomSpec({shape});
      spec.config.algorithm = algorithm;
      spec.weights = spec.weights && algorithm == Algorithm::kThreeStep;
      CheckLimited(spec);
    }
  }
}

TEST_P(AttentionSweepTest, LargeShapes) {
  for (const auto& shape : kLargeShapes) {
    ProblemSpec spec = RandomSpec({shape});
    spec.config.query_head_count = spec.config.kv_head_count = 1;
    spec.config.head_dim_qk = 64;
    spec.config.head_dim_v = 32;
    CheckLegal(spec);
  }
}

TEST_P(AttentionSweepTest, EveryHeadDimAndType) {
  for (int32_t dim : kHeadDims) {
    for (DataType type : kDataTypes) {
      for (bool same : {true, false}) {
        ProblemSpec spec = RandomSpec({{Draw(1, 140), Draw(1, 140)}});
        spec.config.data_type = type;
        spec.config.head_dim_qk = dim;
        spec.config.head_dim_v = same ? dim : Pick(kHeadDims);
        CheckLimited(spec);
      }
    }
  }
}

TEST_P(AttentionSweepTest, EveryLayoutTypeAndAlgorithm) {
  for (Layout layout : kAllLayouts) {
    for (DataType type : kDataTypes) {
      for (Algorithm algorithm : kAlgorithms) {
        const int64_t m = Draw(1, 100);
        ProblemSpec spec =
            RandomSpec({{m, layout == Layout::kPacked ? m : Draw(1, 150)}});
        spec.layout = layout;
        spec.config.data_type = type;
        spec.config.algorithm = algorithm;
        spec.weights = spec.weights && algorithm == Algorithm::kThreeStep;
        CheckLimited(spec);
      }
    }
  }
}

TEST_P(AttentionSweepTest, EveryMaskWithEveryKindOfWindow) {
  for (MaskKind mask : kMasks) {
    for (int64_t left :
         {kUnlimitedWindow, int64_t{0}, int64_t{1}, Draw(2, 90)}) {
      for (int64_t right :
           {kUnlimitedWindow, int64_t{0}, int64_t{1}, Draw(2, 90)}) {
        ProblemSpec spec = RandomSpec({{Draw(1, 160), Draw(1, 160)}});
        spec.config.mask = mask;
        spec.sequences[0].window_left = left;
        spec.sequences[0].window_right = right;
        CheckLimited(spec);
      }
    }
  }
}

TEST_P(AttentionSweepTest, EveryGroupingOfHeads) {
  const std::pair<int32_t, int32_t> heads[] = {
      {1, 1}, {3, 1}, {16, 1}, {16, 2}, {16, 8}, {16, 16}, {40, 8}, {12, 4}};
  for (const auto& [query_heads, kv_heads] : heads) {
    for (DataType type : kDataTypes) {
      ProblemSpec spec = RandomSpec({{Draw(1, 70), Draw(1, 70)}});
      spec.config.query_head_count = query_heads;
      spec.config.kv_head_count = kv_heads;
      spec.config.data_type = type;
      spec.config.head_dim_qk = std::min(spec.config.head_dim_qk, 64);
      spec.config.head_dim_v = std::min(spec.config.head_dim_v, 64);
      CheckLegal(spec);
    }
  }
}

// Kernels split queries and keys into tiles whose sizes are powers of two.
TEST_P(AttentionSweepTest, LengthsAroundTileSizes) {
  std::vector<int64_t> lengths = {0, 1, 2, 3};
  for (int64_t tile : {8, 16, 32, 64, 128}) {
    for (int64_t delta : {-1, 0, 1}) lengths.push_back(tile + delta);
  }
  for (int64_t m : lengths) {
    for (int repeat = 0; repeat < 5; ++repeat) {
      CheckLimited(RandomSpec({{m, Pick(lengths)}}));
    }
  }
}

TEST_P(AttentionSweepTest, RaggedBatches) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::vector<std::pair<int64_t, int64_t>> shapes;
    const int64_t count = Draw(2, 12);
    for (int64_t i = 0; i < count; ++i) {
      shapes.emplace_back(Draw(0, 5) ? Draw(1, 90) : 0,
                          Draw(0, 5) ? Draw(1, 90) : 0);
    }
    CheckLimited(RandomSpec(shapes));
  }
}

TEST_P(AttentionSweepTest, Anything) {
  for (int repeat = 0; repeat < 60; ++repeat) {
    CheckLimited(RandomSpec({{Draw(0, 300), Draw(0, 300)}}));
  }
}

// Long enough for many tiles; the reference computes only rows whose mask is
// the same in a shorter sequence.
TEST_P(AttentionSweepTest, LongSequences) {
  constexpr int64_t kLength = 4224;
  constexpr int64_t kRows = 40;
  for (MaskKind mask : kMasks) {
    for (DataType type : kDataTypes) {
      AttentionProblem problem({.config = {.data_type = type,
                                           .head_dim_qk = 32,
                                           .head_dim_v = 16,
                                           .query_head_count = 1,
                                           .kv_head_count = 1,
                                           .mask = mask,
                                           .algorithm =
                                               type == DataType::kFloat8E4M3
                                                   ? Algorithm::kStreaming
                                                   : Pick(kAlgorithms)},
                                .sequences = {{kLength, kLength}},
                                .seed = random()()});
      ASSERT_NO_FATAL_FAILURE(Run(problem));
      const HeadConfig& config = problem.spec().config;
      const int64_t first =
          mask == MaskKind::kCausalTopLeft ? 0 : kLength - kRows;
      Sequence rows = problem.sequence(0);
      rows.query = static_cast<const char*>(rows.query) +
                   first * config.head_dim_qk * ElementBytes(type);
      rows.output = static_cast<char*>(rows.output) +
                    first * config.head_dim_v * ElementBytes(OutputType(type));
      rows.log_sum_exp += first;
      rows.query_length = kRows;
      EXPECT_TRUE(MatchesReference(config, rows, float8_weights()))
          << ToString(problem.spec());
    }
  }
}

INSTANTIATE_FOR_BACKENDS(AttentionSweepTest);

}  // namespace
}  // namespace attention::test
