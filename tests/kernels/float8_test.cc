// What is special about fp8: its numbers, and the scales of heads. All else is
// tested as for other types.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/float_convert.h"
#include "tests/support/kernel_backend.h"

namespace attention::test {
namespace {

HeadConfig Heads(int32_t query_heads, int32_t kv_heads, int32_t dim) {
  return {.data_type = DataType::kFloat8E4M3,
          .head_dim_qk = dim,
          .head_dim_v = dim,
          .query_head_count = query_heads,
          .kv_head_count = kv_heads};
}

class Float8Test : public KernelTest {
 protected:
  // 256 tokens of one head; a query sees its own key alone. `role` has every
  // number of the type, in all dimensions of a value and in the first of a
  // query or key, where the others have 1.
  std::unique_ptr<AttentionProblem> EveryNumber(int32_t dim, TensorRole role) {
    auto owned = std::make_unique<AttentionProblem>(
        ProblemSpec{.config = Heads(1, 1, dim),
                    .sequences = {{256, 256, 1.0, 0, 0}},
                    .scales = HeadScales::kNone,
                    .seed = random()()});
    AttentionProblem& problem = *owned;
    problem.Fill(TensorRole::kQuery, 0, 0);
    problem.Fill(TensorRole::kKey, 0, 0);
    for (int64_t token = 0; token < 256; ++token) {
      problem.Set(TensorRole::kQuery, 0, token, 0, 0, 1);
      problem.Set(TensorRole::kKey, 0, token, 0, 0, 1);
      const int32_t dims = role == TensorRole::kValue ? dim : 1;
      for (int32_t d = 0; d < dims; ++d) {
        problem.Set(role, 0, token, 0, d, Number(token));
      }
    }
    return owned;
  }

  // Computes the problem anew, its sequences as edit(sequence, number) left
  // them.
  template <typename Edit>
  void ComputeEdited(AttentionProblem& problem, const Edit& edit) {
    AttentionParams params = problem.params();
    std::vector<Sequence> sequences(params.sequences,
                                    params.sequences + params.sequence_count);
    for (size_t i = 0; i < sequences.size(); ++i) edit(sequences[i], i);
    params.sequences = sequences.data();
    problem.ResetOutputs();
    ASSERT_TRUE(backend().Compute(params, problem.buffers()).ok());
  }

  static float Number(int64_t token) {
    return Float8E4M3ToFloat(static_cast<uint8_t>(token));
  }
};

constexpr int32_t kDims[] = {1, 16, 64, 100, 128, 256};

TEST_P(Float8Test, ValuesOfEveryNumberComeBack) {
  for (int32_t dim : kDims) {
    const auto owned = EveryNumber(dim, TensorRole::kValue);
    AttentionProblem& problem = *owned;
    ASSERT_NO_FATAL_FAILURE(Run(problem));
    for (int64_t token = 0; token < 256; ++token) {
      for (int32_t d = 0; d < dim; ++d) {
        const float got = problem.Get(TensorRole::kOutput, 0, token, 0, d);
        if (std::isnan(Number(token))) {
          EXPECT_TRUE(std::isnan(got)) << "number " << token;
        } else {
          EXPECT_EQ(got, Number(token)) << "number " << token;
        }
      }
    }
  }
}

TEST_P(Float8Test, QueriesAndKeysOfEveryNumberAreScores) {
  for (int32_t dim : kDims) {
    for (TensorRole role : {TensorRole::kQuery, TensorRole::kKey}) {
      const auto owned = EveryNumber(dim, role);
      AttentionProblem& problem = *owned;
      ASSERT_NO_FATAL_FAILURE(Run(problem));
      const Sequence& s = problem.sequence(0);
      for (int64_t token = 0; token < 256; ++token) {
        const float got = s.log_sum_exp[token * s.log_sum_exp_token_stride];
        const float want = Number(token);
        if (std::isnan(want)) {
          EXPECT_TRUE(std::isnan(got)) << "number " << token;
        } else {
          EXPECT_NEAR(got, want, 1e-6 * std::max(1.0f, std::abs(want)));
        }
      }
    }
  }
}

TEST_P(Float8Test, ScalesOfOneAreNoScales) {
  for (int32_t dim : {64, 200}) {
    AttentionProblem problem({.config = Heads(4, 2, dim),
                              .sequences = {{70, 130}, {1, 40}, {5, 0}},
                              .scales = HeadScales::kNone,
                              .seed = random()()});
    ASSERT_NO_FATAL_FAILURE(Run(problem));
    std::vector<std::vector<std::byte>> want;
    for (int64_t i = 0; i < 3; ++i) want.push_back(problem.OutputBits(i));
    const std::vector<float> ones(4, 1.0f);
    ASSERT_NO_FATAL_FAILURE(ComputeEdited(problem, [&](Sequence& s, size_t) {
      s.query_scales = s.key_scales = s.value_scales = ones.data();
    }));
    for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(problem.OutputBits(i), want[i]);
  }
}

TEST_P(Float8Test, ScalesThatAllHeadsShareAreTheScores) {
  for (int32_t dim : {64, 256}) {
    AttentionProblem problem({.config = Heads(4, 2, dim),
                              .sequences = {{70, 130}, {33, 300}},
                              .scales = HeadScales::kNone,
                              .seed = random()()});
    ASSERT_NO_FATAL_FAILURE(Run(problem));
    std::vector<std::vector<std::byte>> want;
    for (int64_t i = 0; i < 2; ++i) want.push_back(problem.OutputBits(i));
    const std::vector<float> of_query(4, 16.0f), of_key(2, 0.5f);
    ASSERT_NO_FATAL_FAILURE(ComputeEdited(problem, [&](Sequence& s, size_t) {
      s.query_scales = of_query.data();
      s.key_scales = of_key.data();
      s.scale /= 8;
    }));
    for (int64_t i = 0; i < 2; ++i) EXPECT_EQ(problem.OutputBits(i), want[i]);
  }
}

// Scores of one head are next to nothing, those of the other what they were,
// however far apart their scales are.
TEST_P(Float8Test, ScalesMayBeFarApart) {
  constexpr int64_t kQueries = 40, kKeys = 90;
  for (int32_t dim : {64, 256}) {
    AttentionProblem problem({.config = Heads(2, 2, dim),
                              .sequences = {{kQueries, kKeys}},
                              .scales = HeadScales::kNone,
                              .seed = random()()});
    ASSERT_NO_FATAL_FAILURE(Run(problem));
    const Sequence& s = problem.sequence(0);
    const auto log_sum_exp = [&](int64_t token, int64_t head) {
      return s.log_sum_exp[token * s.log_sum_exp_token_stride +
                           head * s.log_sum_exp_head_stride];
    };
    std::vector<float> want;
    for (int64_t i = 0; i < kQueries; ++i) want.push_back(log_sum_exp(i, 1));
    for (const float small : {0x1p-10f, 0x1p-40f}) {
      const float of_query[] = {small, 1};
      ASSERT_NO_FATAL_FAILURE(ComputeEdited(
          problem,
          [&](Sequence& scaled, size_t) { scaled.query_scales = of_query; }));
      for (int64_t i = 0; i < kQueries; ++i) {
        EXPECT_NEAR(log_sum_exp(i, 0), std::log(double{kKeys}), 0.05);
        EXPECT_NEAR(log_sum_exp(i, 1), want[i], 1e-4) << "scale " << small;
      }
    }
  }
}

// Powers of two of queries and keys that make up for each other change no bit,
// those of values the exponents of their heads' outputs alone.
TEST_P(Float8Test, ScalesAreThoseOfTheirHeads) {
  for (int32_t dim : {16, 40, 128, 256}) {
    AttentionProblem problem({.config = Heads(6, 3, dim),
                              .sequences = {{90, 150}, {3, 33}},
                              .scales = HeadScales::kNone,
                              .seed = random()()});
    ASSERT_NO_FATAL_FAILURE(Run(problem));
    const auto outputs = [&] {
      std::vector<float> values;
      for (int64_t token = 0; token < 90; ++token) {
        for (int64_t head = 0; head < 6; ++head) {
          for (int32_t d = 0; d < dim; ++d) {
            values.push_back(
                problem.Get(TensorRole::kOutput, 0, token, head, d));
          }
        }
      }
      return values;
    };
    const std::vector<float> plain = outputs();
    const float of_query[] = {8, 8, 0.25f, 0.25f, 1, 1};
    const float of_key[] = {0.125f, 4, 1};
    const float of_value[] = {2, 1, 0x1p-20f};
    const std::vector<std::byte> second = problem.OutputBits(1);
    ASSERT_NO_FATAL_FAILURE(ComputeEdited(problem, [&](Sequence& s, size_t i) {
      if (i > 0) return;  // the second sequence goes without
      s.query_scales = of_query;
      s.key_scales = of_key;
      s.value_scales = of_value;
    }));
    const std::vector<float> scaled = outputs();
    for (size_t i = 0; i < plain.size(); ++i) {
      const int64_t head = static_cast<int64_t>(i) / dim % 6;
      ASSERT_EQ(scaled[i], plain[i] * of_value[head / 2]) << "output " << i;
    }
    EXPECT_EQ(problem.OutputBits(1), second);
  }
}

INSTANTIATE_FOR_BACKENDS(Float8Test);

}  // namespace
}  // namespace attention::test
