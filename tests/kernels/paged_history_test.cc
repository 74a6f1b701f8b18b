// What becomes of a sequence's pages between launches: shared, copied before
// they are written, cut, freed behind a window.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/float_convert.h"
#include "tests/support/kernel_backend.h"
#include "tests/support/paged_problem.h"

namespace attention::test {
namespace {

class PagedHistoryTest : public KernelTest {
 protected:
  PagedSpec Spec(int32_t page_tokens, int64_t page_count) {
    constexpr int32_t kDims[] = {32, 59, 64, 128};
    PagedSpec spec;
    spec.config.heads = {.data_type = static_cast<DataType>(Draw(0, 2)),
                         .head_dim_qk = Pick(kDims),
                         .head_dim_v = Pick(kDims),
                         .query_head_count = 4,
                         .kv_head_count = 2,
                         .mask = MaskKind::kCausalBottomRight};
    spec.config.kv_data_type = static_cast<KvDataType>(Draw(0, 1));
    spec.config.page_tokens = page_tokens;
    spec.page_count = page_count;
    spec.seed = random()();
    spec.page_seed = random()();
    return spec;
  }
};

TEST_P(PagedHistoryTest, ManyDecodingSteps) {
  PagedProblem problem(Spec(16, 40), backend());
  const int64_t a = problem.Create();
  const int64_t b = problem.Create();
  ASSERT_TRUE(problem.Launch({{a, 90}, {b, 3}}));
  for (int step = 0; step < 40; ++step) {
    ASSERT_TRUE(problem.Launch({{a, 1, 1}, {b, 4, 4}}));
  }
}

// Several steps of one sequence in one launch: each sees what it and those
// before it append, and nothing of those after it.
TEST_P(PagedHistoryTest, StepsOfOneSequenceInOneLaunch) {
  PagedProblem problem(Spec(4, 40), backend());
  const int64_t s = problem.Create();
  ASSERT_TRUE(
      problem.Launch({{s, 5, 5}, {s, 1, 1}, {s, 2, 2}, {s, 70}, {s, 1, 1}}));
  ASSERT_TRUE(problem.Launch({{s, 1, 1}, {s, 0, 3}, {s, 1, 1}}));
}

TEST_P(PagedHistoryTest, ForksShareAndCopyBeforeTheyWrite) {
  for (int32_t page_tokens : {1, 4, 64}) {
    const int64_t prefix = 3 * page_tokens + (page_tokens + 1) / 2;
    PagedProblem problem(Spec(page_tokens, 40), backend());
    const int64_t trunk = problem.Create();
    ASSERT_TRUE(problem.Launch({{trunk, prefix}}));
    const int64_t left = problem.Fork(trunk, prefix);
    const int64_t right = problem.Fork(trunk, prefix - 1);
    const int64_t free_before = problem.free_page_count();
    // All three append to what was one page.
    ASSERT_TRUE(problem.Launch({{trunk, 1, 1}, {left, 1, 1}, {right, 1, 1}}));
    EXPECT_LT(problem.free_page_count(), free_before);
    for (int step = 0; step < 5; ++step) {
      ASSERT_TRUE(problem.Launch({{right, 2, 2}, {trunk, 1, 1}, {left, 1, 1}}));
    }
    const int64_t of_fork = problem.Fork(left, prefix + 2);
    ASSERT_TRUE(problem.Launch({{of_fork, 3, 3}, {left, 1, 1}}));
    ASSERT_TRUE(problem.Launch({{of_fork, 0, 2}, {left, 0, 2}, {trunk, 0, 2}}));
  }
}

TEST_P(PagedHistoryTest, RejectedTokensAreOverwritten) {
  PagedProblem problem(Spec(16, 20), backend());
  const int64_t s = problem.Create();
  ASSERT_TRUE(problem.Launch({{s, 61}}));
  for (int round = 0; round < 6; ++round) {
    ASSERT_TRUE(problem.Launch({{s, 8, 8}}));  // a draft
    problem.Truncate(s, problem.length(s) - Draw(0, 8));
    ASSERT_TRUE(problem.Launch({{s, 1, 1}}));
  }
}

TEST_P(PagedHistoryTest, PagesBehindTheWindowAreFreedAndUsedAnew) {
  constexpr int64_t kWindow = 40;
  constexpr int64_t kSinks = 4;
  // Too few pages for all tokens: what is freed must be used again.
  PagedProblem problem(Spec(8, 12), backend());
  const int64_t s = problem.Create();
  ASSERT_TRUE(problem.Launch({{s, 45}}));
  int64_t freed = kSinks;
  for (int step = 0; step < 100; ++step) {
    ASSERT_TRUE(problem.Launch({{.sequence = s,
                                 .append = 1,
                                 .queries = 1,
                                 .window_left = kWindow - 1,
                                 .sink_tokens = kSinks}}));
    const int64_t behind = (problem.length(s) + 1 - kWindow) / 8 * 8;
    if (behind > freed) {
      problem.FreeTokens(s, {freed, behind});
      freed = behind;
    }
  }
}

// NaN belongs to who appended it.
TEST_P(PagedHistoryTest, NanStaysWithTheQueriesThatSeeIt) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  PagedProblem problem(Spec(16, 40), backend());
  const int64_t s = problem.Create();
  const int64_t mate = problem.Create();
  problem.ChangeTensors([&](AttentionProblem& tensors) {
    tensors.Set(TensorRole::kKey, 0, 20, 0, 3, kNan);
    tensors.Set(TensorRole::kValue, 0, 50, 1, 5, kNan);
  });
  ASSERT_TRUE(problem.Launch({{s, 100}, {mate, 100}}));
  // The reference has NaN where it belongs, and nowhere else.
  ASSERT_TRUE(problem.Launch({{s, 1, 1}, {mate, 1, 1}}));
  const float nan_head = problem.tensors().Get(TensorRole::kOutput, 0, 0, 0, 0);
  EXPECT_TRUE(std::isnan(nan_head));
  ASSERT_TRUE(
      problem.Launch({{.sequence = s, .queries = 60, .window_left = 10},
                      {.sequence = s, .queries = 30, .keys = KeyRange{21, 50}},
                      {.sequence = mate, .queries = 3}}));
  EXPECT_FALSE(
      std::isnan(problem.tensors().Get(TensorRole::kOutput, 1, 29, 0, 0)));
}

// Beyond the largest fp8 number values saturate, and exact halves round to
// even.
TEST_P(PagedHistoryTest, RoundingToFloat8) {
  PagedSpec spec = Spec(16, 20);
  spec.config.kv_data_type = KvDataType::kFloat8E4M3;
  PagedProblem problem(spec, backend());
  const int64_t s = problem.Create();
  problem.ChangeTensors([&](AttentionProblem& tensors) {
    constexpr float kValues[] = {1000.0f,
                                 -1000.0f,
                                 std::numeric_limits<float>::infinity(),
                                 -std::numeric_limits<float>::infinity(),
                                 0.0f,
                                 -0.0f,
                                 1e-4f,
                                 -1e-4f};
    for (int64_t token = 0; token < 64; ++token) {
      for (int64_t d = 0; d < 32; ++d) {
        tensors.Set(TensorRole::kValue, 0, token, 0, d,
                    kValues[(token + d) % std::size(kValues)]);
      }
    }
  });
  ASSERT_TRUE(problem.Launch({{s, 64, 4}}));
}

INSTANTIATE_FOR_BACKENDS(PagedHistoryTest);

}  // namespace
}  // namespace attention::test
