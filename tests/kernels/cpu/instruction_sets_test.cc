// The shared suite runs on the best instruction set of the machine; this one
// covers every set that is compiled in and that the machine has.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/attention_cpu.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/float_convert.h"
#include "kernels/validation.h"
#include "tests/support/attention_problem.h"
#include "tests/support/comparison.h"
#include "tests/support/kernel_backend.h"
#include "tests/support/paged_problem.h"

namespace attention::test {
namespace {

void UseTargets(int64_t targets) {
  hwy::SetSupportedTargetsForTest(targets);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

class InstructionSetTest : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { UseTargets(GetParam()); }
  void TearDown() override { UseTargets(0); }

  int64_t Draw(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }

  // fp8 is for tensors and the streaming algorithm only.
  HeadConfig DrawConfig(Algorithm algorithm, DataType last_type) {
    HeadConfig config;
    config.algorithm = algorithm;
    config.data_type =
        static_cast<DataType>(Draw(0, static_cast<int64_t>(last_type)));
    config.head_dim_qk = static_cast<int32_t>(Draw(1, 140));
    config.head_dim_v =
        static_cast<int32_t>(Draw(0, 1) ? config.head_dim_qk : Draw(1, 140));
    config.kv_head_count = static_cast<int32_t>(Draw(1, 2));
    config.query_head_count =
        config.kv_head_count * static_cast<int32_t>(Draw(1, 5));
    config.mask = static_cast<MaskKind>(Draw(0, 2));
    return config;
  }

  void Check(const ProblemSpec& spec) {
    SCOPED_TRACE(ToString(spec));
    AttentionProblem problem(spec);
    ASSERT_TRUE(ValidateParams(problem.params()).ok());
    ASSERT_TRUE(cpu::ComputeAttention(problem.params(), pool_).ok());
    EXPECT_TRUE(problem.OnlyOutputsWritten());
    EXPECT_TRUE(MatchesReference(problem, Float8Weights::kBFloat16));
  }

  std::mt19937_64 random_{RunSeed()};
  cpu::ThreadPool pool_{2};
};

TEST_P(InstructionSetTest, IsTheOneInUse) {
  EXPECT_STREQ(cpu::InstructionSet(), hwy::TargetName(GetParam()));
}

TEST_P(InstructionSetTest, AnyShapeMatchesTheReference) {
  for (int i = 0; i < 60 && !HasFailure(); ++i) {
    ProblemSpec spec{
        .config = Draw(0, 1)
                      ? DrawConfig(Algorithm::kStreaming, DataType::kFloat8E4M3)
                      : DrawConfig(Algorithm::kThreeStep, DataType::kBFloat16)};
    for (int64_t n = Draw(1, 3); n > 0; --n) {
      SequenceSpec sequence{Draw(0, 70), Draw(0, 250)};
      if (Draw(0, 2) == 0) sequence.window_left = Draw(0, 100);
      if (Draw(0, 2) == 0) sequence.window_right = Draw(0, 100);
      spec.sequences.push_back(sequence);
    }
    spec.layout = kAllLayouts[Draw(0, std::size(kAllLayouts) - 1)];
    spec.weights = spec.config.algorithm == Algorithm::kThreeStep;
    spec.misalignment = Draw(0, 3);
    spec.exact_allocations = Draw(0, 1) == 1;
    spec.seed = random_();
    Check(spec);
  }
}

// Few queries and many keys: dot products, and a split over the keys.
TEST_P(InstructionSetTest, DecodingMatchesTheReference) {
  for (int i = 0; i < 12 && !HasFailure(); ++i) {
    ProblemSpec spec{
        .config = DrawConfig(Algorithm::kStreaming, DataType::kFloat8E4M3)};
    spec.sequences = {{Draw(1, 3), Draw(1000, 3000)}};
    spec.seed = random_();
    Check(spec);
  }
}

// Rows of several panels, whose maxima are found late and early.
TEST_P(InstructionSetTest, LongRowsMatchTheReference) {
  for (int i = 0; i < 4 && !HasFailure(); ++i) {
    ProblemSpec spec{
        .config = DrawConfig(Algorithm::kThreeStep, DataType::kBFloat16)};
    spec.config.kv_head_count = 1;
    spec.config.query_head_count = static_cast<int32_t>(Draw(1, 2));
    spec.sequences = {{Draw(1, 20), Draw(6100, 6200)},
                      {Draw(1, 9), Draw(12000, 14000)}};
    for (SequenceSpec& sequence : spec.sequences) {
      // Rows then differ in the panel where they begin.
      if (Draw(0, 1) == 0) sequence.window_left = Draw(5000, 7000);
    }
    spec.weights = Draw(0, 1) == 0;
    spec.seed = random_();
    Check(spec);
  }
}

TEST_P(InstructionSetTest, ReturnedWeightsOfLongRowsChangeNothingElse) {
  ProblemSpec spec{.config = {.head_dim_qk = 8,
                              .head_dim_v = 24,
                              .query_head_count = 2,
                              .kv_head_count = 1,
                              .algorithm = Algorithm::kThreeStep},
                   .sequences = {{7, 13000}},
                   .seed = RunSeed()};
  AttentionProblem without(spec);
  spec.weights = true;
  AttentionProblem with(spec);
  ASSERT_TRUE(cpu::ComputeAttention(without.params(), pool_).ok());
  ASSERT_TRUE(cpu::ComputeAttention(with.params(), pool_).ok());
  const auto want = without.OutputBits(0);
  auto got = with.OutputBits(0);
  got.resize(want.size());  // weights come last
  EXPECT_EQ(got, want);
}

// Infinities, NaN, subnormals and roundings of the 16-bit types, converted by
// vector instructions where the target has them: M = N = 1 copies the value.
TEST_P(InstructionSetTest, ConversionsKeepEveryBitPattern) {
  constexpr int64_t kDim = 64;
  for (DataType type : {DataType::kFloat16, DataType::kBFloat16}) {
    HeadConfig config{.data_type = type,
                      .head_dim_qk = 1,
                      .head_dim_v = kDim,
                      .query_head_count = 1,
                      .kv_head_count = 1};
    const uint16_t zero = 0;
    for (int64_t base = 0; base < 65536; base += kDim) {
      uint16_t value[kDim];
      uint16_t output[kDim];
      for (int64_t i = 0; i < kDim; ++i) {
        value[i] = static_cast<uint16_t>(base + i);
      }
      Sequence s;
      s.query = s.key = &zero;
      s.value = value;
      s.output = output;
      s.query_length = s.key_length = 1;
      ASSERT_TRUE(cpu::ComputeAttention({config, &s, 1}, pool_).ok());
      for (int64_t i = 0; i < kDim; ++i) {
        const float want = type == DataType::kFloat16
                               ? HalfToFloat(value[i])
                               : BFloat16ToFloat(value[i]);
        if (want != want) {
          const float got = type == DataType::kFloat16
                                ? HalfToFloat(output[i])
                                : BFloat16ToFloat(output[i]);
          ASSERT_NE(got, got) << value[i];
        } else {
          // -0 may come back as +0: it is added to an empty sum.
          ASSERT_TRUE(output[i] == value[i] || (want == 0.0f && output[i] == 0))
              << value[i] << " came back as " << output[i];
        }
      }
    }
  }
}

TEST_P(InstructionSetTest, ResidentKeysAndValuesMatchTheReference) {
  const auto backend = MakeCpuBackend(2);
  constexpr int32_t kDims[] = {16, 40, 64, 96, 128};
  for (int i = 0; i < 40 && !HasFailure(); ++i) {
    PagedSpec spec{.config = {.heads = DrawConfig(Algorithm::kStreaming,
                                                  DataType::kBFloat16)}};
    HeadConfig& c = spec.config.heads;
    if (Draw(0, 1)) c.head_dim_qk = kDims[Draw(0, 4)];
    if (Draw(0, 1)) c.head_dim_v = kDims[Draw(0, 4)];
    spec.config.kv_data_type = static_cast<KvDataType>(i % 2);
    spec.config.page_tokens = static_cast<int32_t>(Draw(1, 70));
    const int64_t length = Draw(1, Draw(0, 3) ? 200 : 2500);
    spec.page_count = PagesFor(spec.config, length);
    spec.seed = random_();
    PagedProblem problem(spec, *backend);
    const int64_t s = problem.Create();
    ASSERT_TRUE(problem.Launch({{s, length}}));
    PagedStep step = {.sequence = s, .queries = Draw(0, 2) ? 1 : Draw(1, 60)};
    if (Draw(0, 2) == 0) step.window_left = Draw(0, length);
    if (Draw(0, 2) == 0) step.sink_tokens = Draw(0, 50);
    EXPECT_TRUE(problem.Launch({step}));
  }
}

// As ConversionsKeepEveryBitPattern, for fp8 pages.
TEST_P(InstructionSetTest, Float8PatternsKeepTheirValues) {
  const auto backend = MakeCpuBackend(1);
  const PagedSpec spec{.config = {.heads = {.data_type = DataType::kFloat32,
                                            .head_dim_qk = 16,
                                            .head_dim_v = 64,
                                            .query_head_count = 1,
                                            .kv_head_count = 1},
                                  .kv_data_type = KvDataType::kFloat8E4M3,
                                  .page_tokens = 4},
                       .page_count = 1};
  PagedProblem problem(spec, *backend);
  const int64_t s = problem.Create();
  const float scale = problem.value_scale(s, 0);
  problem.ChangeTensors([&](AttentionProblem& tensors) {
    for (int pattern = 0; pattern < 256; ++pattern) {
      tensors.Set(TensorRole::kValue, 0, pattern / 64, 0, pattern % 64,
                  Float8E4M3ToFloat(static_cast<uint8_t>(pattern)) * scale);
    }
  });
  ASSERT_TRUE(problem.Launch({{s, 4}}));
  for (int64_t token = 0; token < 4; ++token) {
    ASSERT_TRUE(problem.Launch(
        {{.sequence = s, .queries = 1, .keys = KeyRange{token, token + 1}}}));
    for (int64_t d = 0; d < 64; ++d) {
      const auto pattern = static_cast<uint8_t>(token * 64 + d);
      const float want = Float8E4M3ToFloat(pattern) * scale;
      const float got = problem.tensors().Get(TensorRole::kOutput, 0, 0, 0, d);
      EXPECT_TRUE(got == want || (got != got && want != want))
          << token * 64 + d << " gave " << got;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, InstructionSetTest,
                         testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const testing::TestParamInfo<int64_t>& info) {
                           return std::string(hwy::TargetName(info.param));
                         });

}  // namespace
}  // namespace attention::test
