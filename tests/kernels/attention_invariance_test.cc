// What must not change a single bit of an answer: batch mates, memory beside
// the tensors, masked keys, repetition, optional results, thread count.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/support/comparison.h"
#include "tests/support/kernel_backend.h"

namespace attention::test {
namespace {

using Bits = std::vector<std::byte>;

class AttentionInvarianceTest : public KernelTest {
 protected:
  // Random types, dims and masks for both algorithms.
  template <typename Body>
  void ForRandomConfigs(int repeats, Body body) {
    for (int repeat = 0; repeat < repeats; ++repeat) {
      HeadConfig config;
      config.data_type = static_cast<DataType>(Draw(0, 3));
      config.precision = static_cast<Precision>(Draw(0, 1));
      config.mask = static_cast<MaskKind>(Draw(0, 2));
      config.algorithm = config.data_type == DataType::kFloat8E4M3
                             ? Algorithm::kStreaming
                             : static_cast<Algorithm>(repeat % 2);
      constexpr int32_t kDims[] = {16, 33, 64, 100, 128, 256};
      config.head_dim_qk = Pick(kDims);
      config.head_dim_v = Draw(0, 1) ? config.head_dim_qk : Pick(kDims);
      config.kv_head_count = static_cast<int32_t>(Draw(1, 3));
      config.query_head_count =
          config.kv_head_count * static_cast<int32_t>(Draw(1, 4));
      body(config);
      if (HasFatalFailure()) return;
    }
  }

  std::vector<SequenceSpec> RandomSequences(int64_t count) {
    std::vector<SequenceSpec> sequences;
    for (int64_t i = 0; i < count; ++i) {
      SequenceSpec s{Draw(0, 150), Draw(0, 150)};
      if (Draw(0, 2) == 0) s.window_left = Draw(0, 100);
      if (Draw(0, 2) == 0) s.window_right = Draw(0, 100);
      sequences.push_back(s);
    }
    return sequences;
  }

  ProblemSpec Spec(const HeadConfig& config,
                   std::vector<SequenceSpec> sequences) {
    ProblemSpec spec{.config = config, .sequences = std::move(sequences)};
    spec.weights = config.algorithm == Algorithm::kThreeStep;
    spec.layout = Pick(kAllLayouts);
    spec.seed = random()();
    return spec;
  }

  // The bits of all sequences, computed together.
  std::vector<Bits> Compute(AttentionProblem& problem) {
    Run(problem);
    std::vector<Bits> bits;
    for (int64_t i = 0; i < problem.params().sequence_count; ++i) {
      bits.push_back(problem.OutputBits(i));
    }
    return bits;
  }
  std::vector<Bits> Compute(const ProblemSpec& spec) {
    AttentionProblem problem(spec);
    return Compute(problem);
  }
};

TEST_P(AttentionInvarianceTest, BatchMatesDoNotMatter) {
  ForRandomConfigs(16, [&](const HeadConfig& config) {
    AttentionProblem problem(Spec(config, RandomSequences(6)));
    const std::vector<Bits> together = Compute(problem);
    for (int64_t i = 0; i < 6; ++i) {
      problem.ResetOutputs();
      ASSERT_TRUE(
          backend().Compute(problem.params(i, 1), problem.buffers()).ok());
      EXPECT_EQ(problem.OutputBits(i), together[i])
          << "sequence " << i << " of " << ToString(problem.spec());
    }
  });
}

TEST_P(AttentionInvarianceTest, NanInOneRequestLeavesItsMatesAlone) {
  ForRandomConfigs(8, [&](const HeadConfig& config) {
    ProblemSpec spec = Spec(config, {{40, 70}, {90, 90}, {1, 130}});
    const std::vector<Bits> clean = Compute(spec);
    AttentionProblem problem(spec);
    for (TensorRole role :
         {TensorRole::kQuery, TensorRole::kKey, TensorRole::kValue}) {
      problem.Fill(role, 1, std::numeric_limits<float>::quiet_NaN());
    }
    const std::vector<Bits> dirty = Compute(problem);
    EXPECT_EQ(dirty[0], clean[0]) << ToString(spec);
    EXPECT_NE(dirty[1], clean[1]) << ToString(spec);
    EXPECT_EQ(dirty[2], clean[2]) << ToString(spec);
  });
}

TEST_P(AttentionInvarianceTest, UnusedMemoryDoesNotMatter) {
  ForRandomConfigs(24, [&](const HeadConfig& config) {
    ProblemSpec spec = Spec(config, RandomSequences(3));
    spec.poison = Poison::kZero;
    const std::vector<Bits> want = Compute(spec);
    for (Poison poison : {Poison::kNan, Poison::kInfinity}) {
      spec.poison = poison;
      EXPECT_EQ(Compute(spec), want) << ToString(spec);
    }
  });
}

// For memory checkers: reading one element too many is out of bounds here.
TEST_P(AttentionInvarianceTest, TightAllocations) {
  ForRandomConfigs(32, [&](const HeadConfig& config) {
    ProblemSpec spec = Spec(config, RandomSequences(3));
    spec.misalignment = Draw(0, 3);
    const std::vector<Bits> want = Compute(spec);
    spec.exact_allocations = true;
    EXPECT_EQ(Compute(spec), want) << ToString(spec);
  });
}

TEST_P(AttentionInvarianceTest, RepetitionGivesTheSameBits) {
  ForRandomConfigs(6, [&](const HeadConfig& config) {
    AttentionProblem problem(Spec(config, RandomSequences(4)));
    const std::vector<Bits> want = Compute(problem);
    for (int repeat = 0; repeat < 5; ++repeat) {
      EXPECT_EQ(Compute(problem), want) << ToString(problem.spec());
    }
  });
}

TEST_P(AttentionInvarianceTest, AppendedMaskedKeysDoNotMatter) {
  ForRandomConfigs(12, [&](HeadConfig config) {
    config.mask = MaskKind::kCausalTopLeft;
    ProblemSpec spec = Spec(config, {{70, 70}});
    spec.weights = false;  // their shape has N in it
    spec.layout = Layout::kHeadMajor;
    AttentionProblem longer([&] {
      ProblemSpec s = spec;
      s.sequences = {{70, 200}};
      return s;
    }());
    AttentionProblem shorter(spec);
    for (TensorRole role : {TensorRole::kKey, TensorRole::kValue}) {
      const int32_t dims =
          role == TensorRole::kKey ? config.head_dim_qk : config.head_dim_v;
      for (int64_t j = 0; j < 200; ++j) {
        for (int32_t head = 0; head < config.kv_head_count; ++head) {
          for (int32_t d = 0; d < dims; ++d) {
            longer.Set(role, 0, j, head, d,
                       j < 70 ? shorter.Get(role, 0, j, head, d)
                              : std::numeric_limits<float>::quiet_NaN());
          }
        }
      }
    }
    EXPECT_EQ(Compute(longer), Compute(shorter)) << ToString(spec);
  });
}

TEST_P(AttentionInvarianceTest, OptionalResultsDoNotMatter) {
  ForRandomConfigs(8, [&](const HeadConfig& config) {
    ProblemSpec spec = Spec(config, {{60, 90}, {3, 0}, {17, 130}});
    spec.weights = false;
    spec.log_sum_exp = false;
    const std::vector<Bits> want = Compute(spec);
    spec.log_sum_exp = true;
    spec.weights = config.algorithm == Algorithm::kThreeStep;
    const std::vector<Bits> got = Compute(spec);
    for (size_t i = 0; i < want.size(); ++i) {
      // The output comes first.
      EXPECT_EQ(Bits(got[i].begin(), got[i].begin() + want[i].size()), want[i])
          << ToString(spec);
    }
  });
}

TEST_P(AttentionInvarianceTest, PermutedKeysGiveTheSameAnswer) {
  ForRandomConfigs(6, [&](HeadConfig config) {
    config.mask = MaskKind::kNone;
    AttentionProblem problem(Spec(config, {{20, 97}}));
    const auto want =
        reference::ComputeAttention(config, problem.sequence(0), true);
    const Tolerance tolerance =
        ContractTolerance(config, problem.sequence(0), want, float8_weights());
    for (TensorRole role : {TensorRole::kKey, TensorRole::kValue}) {
      const int32_t dims =
          role == TensorRole::kKey ? config.head_dim_qk : config.head_dim_v;
      // Expanded heads are one memory: swap it once.
      const int32_t heads = problem.spec().layout == Layout::kExpandedHeads
                                ? 1
                                : config.kv_head_count;
      for (int64_t j = 0; j < 97 / 2; ++j) {
        for (int32_t head = 0; head < heads; ++head) {
          for (int32_t d = 0; d < dims; ++d) {
            const float a = problem.Get(role, 0, j, head, d);
            const float b = problem.Get(role, 0, 96 - j, head, d);
            problem.Set(role, 0, j, head, d, b);
            problem.Set(role, 0, 96 - j, head, d, a);
          }
        }
      }
    }
    Run(problem);
    Sequence without_weights = problem.sequence(0);
    without_weights.weights = nullptr;  // these are permuted too
    EXPECT_TRUE(Matches(config, without_weights, want, tolerance))
        << ToString(problem.spec());
  });
}

TEST_P(AttentionInvarianceTest, WeightsOfARowSumToOne) {
  ForRandomConfigs(12, [&](HeadConfig config) {
    if (config.data_type == DataType::kFloat8E4M3) return;
    config.algorithm = Algorithm::kThreeStep;
    AttentionProblem problem(Spec(config, {{50, 70}}));
    Run(problem);
    const double roundoff = config.data_type == DataType::kBFloat16  ? 0x1p-8
                            : config.data_type == DataType::kFloat16 ? 0x1p-11
                                                                     : 1e-6;
    for (int32_t head = 0; head < config.query_head_count; ++head) {
      for (int64_t i = 0; i < 50; ++i) {
        double sum = 0;
        for (int64_t j = 0; j < 70; ++j) {
          const float w = problem.Get(TensorRole::kWeights, 0, i, head, j);
          EXPECT_GE(w, 0);
          sum += w;
        }
        const Sequence& s = problem.sequence(0);
        const bool empty =
            std::isinf(s.log_sum_exp[i * s.log_sum_exp_token_stride +
                                     head * s.log_sum_exp_head_stride]);
        EXPECT_NEAR(sum, empty ? 0 : 1, 2 * roundoff)
            << ToString(problem.spec());
      }
    }
  });
}

INSTANTIATE_FOR_BACKENDS(AttentionInvarianceTest);

TEST(CpuInvarianceTest, ThreadCountDoesNotMatter) {
  ProblemSpec spec{.config = {.data_type = DataType::kFloat32,
                              .head_dim_qk = 40,
                              .head_dim_v = 24,
                              .query_head_count = 6,
                              .kv_head_count = 3,
                              .mask = MaskKind::kCausalBottomRight},
                   .sequences = {{130, 150}, {1, 999}, {0, 3}, {65, 64}},
                   .seed = RunSeed()};
  for (Algorithm algorithm : {Algorithm::kStreaming, Algorithm::kThreeStep}) {
    spec.config.algorithm = algorithm;
    AttentionProblem problem(spec);
    std::vector<Bits> want;
    for (int threads : {1, 2, 3, 8}) {
      const auto backend = MakeCpuBackend(threads);
      problem.ResetOutputs();
      ASSERT_TRUE(backend->Compute(problem.params(), problem.buffers()).ok());
      std::vector<Bits> bits;
      for (int64_t i = 0; i < 4; ++i) bits.push_back(problem.OutputBits(i));
      if (threads == 1) want = bits;
      EXPECT_EQ(bits, want) << threads << " threads";
    }
  }
}

}  // namespace
}  // namespace attention::test
