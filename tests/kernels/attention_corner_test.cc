// Faults that attention kernels have had in public, and the corners of the
// contract: empty inputs, extreme scores, NaN and infinity, extreme counts.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/support/comparison.h"
#include "tests/support/kernel_backend.h"

namespace attention::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class AttentionCornerTest : public KernelTest {
 protected:
  // For every data type (fp32 in both precisions) and algorithm that takes it.
  template <typename Body>
  void ForEachConfig(HeadConfig config, Body body) {
    for (DataType type :
         {DataType::kFloat32, DataType::kFloat16, DataType::kBFloat16,
          DataType::kFloat8E4M3}) {
      for (Precision precision : {Precision::kIeee, Precision::kTf32}) {
        if (type != DataType::kFloat32 && precision == Precision::kTf32)
          continue;
        for (Algorithm algorithm :
             {Algorithm::kStreaming, Algorithm::kThreeStep}) {
          if (type == DataType::kFloat8E4M3 &&
              algorithm == Algorithm::kThreeStep)
            continue;
          config.data_type = type;
          config.precision = precision;
          config.algorithm = algorithm;
          body(config);
          if (HasFatalFailure()) return;
        }
      }
    }
  }

  ProblemSpec Spec(const HeadConfig& config,
                   std::vector<SequenceSpec> sequences) {
    ProblemSpec spec{.config = config, .sequences = std::move(sequences)};
    spec.weights = config.algorithm == Algorithm::kThreeStep;
    spec.scales = HeadScales::kNone;
    spec.seed = random()();
    return spec;
  }
};

HeadConfig Heads(int32_t query_heads, int32_t kv_heads, int32_t dim_qk,
                 int32_t dim_v, MaskKind mask = MaskKind::kNone) {
  return {.head_dim_qk = dim_qk,
          .head_dim_v = dim_v,
          .query_head_count = query_heads,
          .kv_head_count = kv_heads,
          .mask = mask};
}

bool HasInfinity(const HeadConfig& config) {
  return config.data_type != DataType::kFloat8E4M3;
}

float LogSumExp(const AttentionProblem& problem, int64_t sequence,
                int64_t token, int64_t head) {
  const Sequence& s = problem.sequence(sequence);
  return s.log_sum_exp[token * s.log_sum_exp_token_stride +
                       head * s.log_sum_exp_head_stride];
}

TEST_P(AttentionCornerTest, EmptyBatch) {
  ForEachConfig(Heads(2, 1, 16, 16),
                [&](const HeadConfig& config) { Check(Spec(config, {})); });
}

TEST_P(AttentionCornerTest, NoHeads) {
  ForEachConfig(Heads(0, 0, 16, 16), [&](const HeadConfig& config) {
    Check(Spec(config, {{3, 5}, {1, 1}}));
  });
}

TEST_P(AttentionCornerTest, SequencesWithoutQueriesOrKeys) {
  ForEachConfig(Heads(4, 2, 40, 24), [&](const HeadConfig& config) {
    Check(Spec(config, {{0, 0}}));
    Check(Spec(config, {{0, 7}}));
    Check(Spec(config, {{7, 0}}));
    Check(Spec(config, {{5, 0}, {0, 5}, {3, 5}, {128, 0}, {0, 0}, {17, 128}}));
  });
}

TEST_P(AttentionCornerTest, PoisonNextToShortSequencesDoesNotLeak) {
  ForEachConfig(Heads(2, 2, 64, 64), [&](const HeadConfig& config) {
    Check(Spec(config, {{1, 1}, {3, 3}, {1, 3}, {3, 1}}));
    ProblemSpec spec = Spec(config, {{5, 13}});  // a page with a free tail
    spec.layout = Layout::kHeadMajor;
    Check(spec);
  });
}

TEST_P(AttentionCornerTest, MoreQueriesThanKeysInBothAlignments) {
  for (MaskKind mask :
       {MaskKind::kCausalTopLeft, MaskKind::kCausalBottomRight}) {
    ForEachConfig(Heads(1, 1, 32, 16, mask), [&](const HeadConfig& config) {
      AttentionProblem problem(Spec(config, {{300, 140}}));
      Check(problem);
      const bool first_row_empty = mask == MaskKind::kCausalBottomRight;
      EXPECT_EQ(LogSumExp(problem, 0, 0, 0) == -kInfinity, first_row_empty);
    });
  }
}

TEST_P(AttentionCornerTest, RightmostTilesFullyMasked) {
  for (MaskKind mask :
       {MaskKind::kCausalTopLeft, MaskKind::kCausalBottomRight}) {
    ForEachConfig(Heads(7, 1, 32, 32, mask), [&](const HeadConfig& config) {
      Check(Spec(config, {{88, 448}}));
    });
  }
}

TEST_P(AttentionCornerTest, RowsWithoutVisibleKeysAreExactlyZero) {
  ForEachConfig(
      Heads(2, 1, 16, 8, MaskKind::kCausalBottomRight),
      [&](const HeadConfig& config) {
        AttentionProblem problem(Spec(config, {{40, 7}, {9, 0}}));
        Run(problem);
        for (int64_t head = 0; head < 2; ++head) {
          for (int64_t token = 0; token < 33; ++token) {
            EXPECT_EQ(LogSumExp(problem, 0, token, head), -kInfinity);
            for (int64_t d = 0; d < 8; ++d) {
              EXPECT_EQ(problem.Get(TensorRole::kOutput, 0, token, head, d), 0);
            }
          }
          EXPECT_GT(LogSumExp(problem, 0, 33, head), -kInfinity);
          EXPECT_EQ(LogSumExp(problem, 1, 8, head), -kInfinity);
          EXPECT_EQ(problem.Get(TensorRole::kOutput, 1, 8, head, 7), 0);
        }
      });
}

TEST_P(AttentionCornerTest, HugeEqualScoresAverage) {
  ForEachConfig(Heads(16, 1, 64, 16), [&](const HeadConfig& config) {
    for (float sign : {-1.0f, 1.0f}) {
      AttentionProblem problem(Spec(config, {{3, 64, 1.0}, {2, 200, 1.0}}));
      for (int64_t s : {0, 1}) {
        problem.Fill(TensorRole::kQuery, s, 40);
        problem.Fill(TensorRole::kKey, s, sign * 40);  // scores of +-102400
      }
      Check(problem);
    }
  });
}

// As a mask of finite, huge negative numbers would have it.
TEST_P(AttentionCornerTest, HugeNegativeScoresWeighNothing) {
  ForEachConfig(Heads(1, 1, 8, 8), [&](const HeadConfig& config) {
    if (config.data_type == DataType::kFloat16) return;  // 1e38 does not fit
    for (int64_t masked : {128, 441}) {  // some keys, and all of them
      AttentionProblem problem(Spec(config, {{441, 441, 1.0}}));
      for (int64_t i = 0; i < 441; ++i) {
        problem.Set(TensorRole::kQuery, 0, i, 0, 0, 1);
        problem.Set(TensorRole::kKey, 0, i, 0, 0, i < masked ? -1e38f : 0);
      }
      Check(problem);
    }
  });
}

TEST_P(AttentionCornerTest, PaddingLanesDoNotCountInTheDenominator) {
  ForEachConfig(Heads(2, 1, 32, 16), [&](const HeadConfig& config) {
    for (int64_t n : {1, 31, 33, 65, 257, 511}) {
      AttentionProblem problem(Spec(config, {{1, n}}));
      problem.Fill(TensorRole::kQuery, 0, 0);
      Check(problem);
      const auto expected = static_cast<float>(std::log(n));
      EXPECT_NEAR(LogSumExp(problem, 0, 0, 1), expected, 1e-5f);
    }
  });
}

TEST_P(AttentionCornerTest, ExpandedHeads) {
  ForEachConfig(Heads(4, 4, 128, 128), [&](const HeadConfig& config) {
    for (int64_t n : {33, 65}) {
      ProblemSpec spec = Spec(config, {{3, n}});
      spec.layout = Layout::kExpandedHeads;
      Check(spec);
    }
  });
}

TEST_P(AttentionCornerTest, PackedTensorsWithOneKeyHead) {
  ForEachConfig(Heads(16, 1, 64, 64), [&](const HeadConfig& config) {
    ProblemSpec spec = Spec(config, {{70, 70}, {131, 131}});
    spec.layout = Layout::kPacked;
    Check(spec);
  });
}

TEST_P(AttentionCornerTest, LongSumsOfLargeValuesDoNotOverflow) {
  ForEachConfig(Heads(1, 1, 8, 4), [&](const HeadConfig& config) {
    AttentionProblem problem(Spec(config, {{2, 65536}}));
    problem.Fill(TensorRole::kQuery, 0, 0);
    problem.Fill(TensorRole::kValue, 0, 60000);
    Run(problem);
    const float want = problem.Get(TensorRole::kValue, 0, 0, 0, 0);
    // 16-bit results are exact. In fp32, equal terms round alike: each may be
    // off by half a unit of the growing sum. Tensor cores drop bits of sums of
    // fp8 products.
    const double tolerance =
        config.data_type == DataType::kFloat32 ? want * 65536 * 0x1p-25
        : float8_weights() == Float8Weights::kFloat8 &&
                config.data_type == DataType::kFloat8E4M3
            ? want * 0x1p-4
            : 0;
    for (int64_t d = 0; d < 4; ++d) {
      EXPECT_NEAR(problem.Get(TensorRole::kOutput, 0, 1, 0, d), want,
                  tolerance);
    }
    EXPECT_NEAR(LogSumExp(problem, 0, 1, 0), std::log(65536.0), 1e-4);
  });
}

TEST_P(AttentionCornerTest, SubnormalValuesSurvive) {
  ForEachConfig(Heads(1, 1, 8, 4), [&](const HeadConfig& config) {
    if (config.data_type != DataType::kFloat16) return;
    AttentionProblem problem(Spec(config, {{2, 16}}));
    problem.Fill(TensorRole::kQuery, 0, 0);
    problem.Fill(TensorRole::kValue, 0, 0x1p-24f);
    Run(problem);
    EXPECT_EQ(problem.Get(TensorRole::kOutput, 0, 1, 0, 3), 0x1p-24f);
  });
}

TEST_P(AttentionCornerTest, ScaleOfZeroAveragesWhatIsVisible) {
  ForEachConfig(Heads(2, 1, 32, 1, MaskKind::kCausalTopLeft),
                [&](const HeadConfig& config) {
                  AttentionProblem problem(Spec(config, {{5, 5, 0.0}}));
                  for (int64_t j = 0; j < 5; ++j) {
                    problem.Set(TensorRole::kValue, 0, j, 0, 0,
                                static_cast<float>(2 * j));
                  }
                  Check(problem);
                  for (int64_t i = 0; i < 5; ++i) {
                    EXPECT_NEAR(problem.Get(TensorRole::kOutput, 0, i, 1, 0), i,
                                1e-2);
                  }
                });
}

TEST_P(AttentionCornerTest, NegativeScalePrefersTheLeastProduct) {
  ForEachConfig(Heads(1, 1, 1, 1), [&](const HeadConfig& config) {
    AttentionProblem problem(Spec(config, {{1, 2, -50.0}}));
    problem.Fill(TensorRole::kQuery, 0, 1);
    problem.Set(TensorRole::kKey, 0, 0, 0, 0, 3);
    problem.Set(TensorRole::kKey, 0, 1, 0, 0, -3);
    problem.Set(TensorRole::kValue, 0, 0, 0, 0, 100);
    problem.Set(TensorRole::kValue, 0, 1, 0, 0, 7);
    Check(problem);
    EXPECT_EQ(problem.Get(TensorRole::kOutput, 0, 0, 0, 0), 7);
  });
}

// The comparison checks that NaN stands exactly where the reference has it:
// in the rows that see the bad element, and for a value in its column only.
TEST_P(AttentionCornerTest, NanStaysInTheRowsThatSeeIt) {
  for (MaskKind mask : {MaskKind::kNone, MaskKind::kCausalTopLeft,
                        MaskKind::kCausalBottomRight}) {
    ForEachConfig(Heads(4, 2, 24, 20, mask), [&](const HeadConfig& config) {
      for (TensorRole role :
           {TensorRole::kQuery, TensorRole::kKey, TensorRole::kValue}) {
        AttentionProblem problem(
            Spec(config, {{90, 100}, {100, 90, {}, 10, 5}, {1, 50}}));
        for (int64_t s : {0, 1}) {
          problem.Set(role, s, 37, 1, 11, kNan);
          problem.Set(role, s, 64, 0, 19, kNan);
        }
        Check(problem);
      }
    });
  }
}

TEST_P(AttentionCornerTest, InfiniteValuesReachTheirColumnOnly) {
  ForEachConfig(
      Heads(2, 1, 16, 12, MaskKind::kCausalTopLeft),
      [&](const HeadConfig& config) {
        if (!HasInfinity(config)) return;
        AttentionProblem problem(Spec(config, {{80, 80}}));
        problem.Set(TensorRole::kValue, 0, 33, 0, 5, kInfinity);
        problem.Set(TensorRole::kValue, 0, 70, 0, 5, -kInfinity);
        Check(problem);
        EXPECT_EQ(problem.Get(TensorRole::kOutput, 0, 69, 0, 5), kInfinity);
        EXPECT_TRUE(std::isnan(problem.Get(TensorRole::kOutput, 0, 70, 0, 5)));
      });
}

TEST_P(AttentionCornerTest, ScoresOfMinusInfinityCountAsMasked) {
  ForEachConfig(Heads(1, 1, 4, 8), [&](const HeadConfig& config) {
    if (!HasInfinity(config)) return;
    for (int64_t masked : {1, 50, 69, 70}) {
      AttentionProblem problem(Spec(config, {{5, 70}}));
      for (int64_t i = 0; i < 5; ++i) {
        problem.Set(TensorRole::kQuery, 0, i, 0, 2, 1.5f);
      }
      for (int64_t j = 0; j < masked; ++j) {
        problem.Set(TensorRole::kKey, 0, j, 0, 2, -kInfinity);
      }
      Check(problem);
    }
  });
}

TEST_P(AttentionCornerTest, ScoresOfInfinityMakeTheirRowNan) {
  ForEachConfig(Heads(1, 1, 4, 8, MaskKind::kCausalTopLeft),
                [&](const HeadConfig& config) {
                  if (!HasInfinity(config)) return;
                  AttentionProblem problem(Spec(config, {{70, 70}}));
                  for (int64_t i = 0; i < 70; ++i) {
                    problem.Set(TensorRole::kQuery, 0, i, 0, 2, 1.5f);
                  }
                  problem.Set(TensorRole::kKey, 0, 40, 0, 2, kInfinity);
                  Check(problem);
                  EXPECT_FALSE(std::isnan(LogSumExp(problem, 0, 39, 0)));
                  EXPECT_TRUE(std::isnan(LogSumExp(problem, 0, 40, 0)));
                });
}

TEST_P(AttentionCornerTest, MoreSequencesThanAGridHasRows) {
  HeadConfig config = Heads(1, 1, 4, 3);
  Check(Spec(config, std::vector<SequenceSpec>(65536, {1, 2})));
  config.algorithm = Algorithm::kThreeStep;
  Check(Spec(config, std::vector<SequenceSpec>(70000, {1, 2})));
}

TEST_P(AttentionCornerTest, MoreHeadsThanAGridHasRows) {
  for (int32_t count : {65536, 70000}) {
    ForEachConfig(Heads(count, 1, 4, 3), [&](const HeadConfig& config) {
      if (config.data_type == DataType::kFloat16) return;
      Check(Spec(config, {{2, 3}}));
    });
  }
}

TEST_P(AttentionCornerTest, ConstantValuesComeBackUnchanged) {
  ForEachConfig(Heads(2, 2, 64, 16), [&](const HeadConfig& config) {
    AttentionProblem problem(Spec(config, {{33, 170}}));
    problem.Fill(TensorRole::kValue, 0, -2.5f);
    Run(problem);
    double tolerance = config.data_type != DataType::kFloat32 ||
                               config.precision == Precision::kTf32
                           ? 2e-2
                           : 5e-6;
    if (config.data_type == DataType::kFloat8E4M3 &&
        float8_weights() == Float8Weights::kFloat8) {
      tolerance = 2.5 * 0x1p-4;
    }
    for (int64_t i = 0; i < 33; ++i) {
      EXPECT_NEAR(problem.Get(TensorRole::kOutput, 0, i, 1, 15), -2.5f,
                  tolerance);
    }
  });
}

TEST_P(AttentionCornerTest, OutputsLieBetweenTheValues) {
  ForEachConfig(Heads(1, 1, 40, 6), [&](const HeadConfig& config) {
    AttentionProblem problem(Spec(config, {{50, 130}}));
    Run(problem);
    for (int64_t d = 0; d < 6; ++d) {
      float low = kInfinity;
      float high = -kInfinity;
      for (int64_t j = 0; j < 130; ++j) {
        const float v = problem.Get(TensorRole::kValue, 0, j, 0, d);
        low = std::min(low, v);
        high = std::max(high, v);
      }
      for (int64_t i = 0; i < 50; ++i) {
        const float got = problem.Get(TensorRole::kOutput, 0, i, 0, d);
        EXPECT_GE(got, low);
        EXPECT_LE(got, high);
      }
    }
  });
}

INSTANTIATE_FOR_BACKENDS(AttentionCornerTest);

}  // namespace
}  // namespace attention::test
