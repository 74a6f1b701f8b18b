// Every backend's attention to resident keys and values against the float64
// reference, over page sizes, lengths, types, masks, windows, sinks, key ranges
// and head groupings. What a test does not fix is drawn anew in every run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/support/kernel_backend.h"
#include "tests/support/paged_problem.h"

namespace attention::test {
namespace {

constexpr DataType kDataTypes[] = {DataType::kFloat32, DataType::kFloat16,
                                   DataType::kBFloat16};
constexpr KvDataType kKvDataTypes[] = {KvDataType::kSame,
                                       KvDataType::kFloat8E4M3};
constexpr MaskKind kMasks[] = {MaskKind::kNone, MaskKind::kCausalTopLeft,
                               MaskKind::kCausalBottomRight};
constexpr int32_t kPageTokens[] = {1, 3, 4, 16, 64, 128, 256};
constexpr int32_t kHeadDims[] = {1,  7,   32,  40,  59,  64,  80,
                                 96, 111, 128, 160, 192, 255, 256};
// Query heads and K/V heads.
constexpr std::pair<int32_t, int32_t> kHeads[] = {
    {1, 1}, {2, 2}, {2, 1}, {4, 2}, {4, 1}, {8, 2}, {8, 1}, {7, 1}, {16, 1}};

class PagedSweepTest : public KernelTest {
 protected:
  PagedSpec RandomSpec() {
    PagedSpec spec;
    HeadConfig& c = spec.config.heads;
    c.data_type = Pick(kDataTypes);
    c.head_dim_qk = Pick(kHeadDims);
    c.head_dim_v = Draw(0, 1) ? c.head_dim_qk : Pick(kHeadDims);
    std::tie(c.query_head_count, c.kv_head_count) = Pick(kHeads);
    c.mask = Pick(kMasks);
    c.precision = Draw(0, 2) ? Precision::kIeee : Precision::kTf32;
    spec.config.kv_data_type = Pick(kKvDataTypes);
    spec.config.page_tokens = Pick(kPageTokens);
    spec.config.split_policy = static_cast<SplitPolicy>(Draw(0, 1));
    spec.layout = Pick(kAllLayouts);
    spec.log_sum_exp = Draw(0, 3) > 0;
    spec.misalignment = Draw(0, 2) ? 0 : Draw(1, 9);
    spec.seed = random()();
    spec.page_seed = random()();
    return spec;
  }

  // Windows, sinks, a key range and a scale, each in some cases only, for a
  // sequence that will have `length` tokens.
  PagedStep RandomStep(const HeadConfig& config, int64_t sequence,
                       int64_t append, int64_t queries, int64_t length) {
    PagedStep step = {sequence, append, queries};
    if (Draw(0, 3) == 0) {
      constexpr double kFactors[] = {0.0, -1.0, 0.25, 1.5};
      step.scale = Pick(kFactors) / std::sqrt(config.head_dim_qk);
    }
    if (Draw(0, 2) == 0) step.window_left = Draw(0, std::max(queries, length));
    if (Draw(0, 3) == 0) step.window_right = Draw(0, std::max(queries, length));
    if (Draw(0, 2) == 0) step.sink_tokens = Draw(0, Draw(0, 2) ? 8 : length);
    if (Draw(0, 2) == 0) {
      const int64_t end = Draw(0, length);
      step.keys = KeyRange{Draw(0, end), end};
    }
    return step;
  }

  // Fewer heads or smaller ones where the reference would take too long.
  static void LimitCost(int64_t pairs, HeadConfig& c) {
    constexpr double kMaxProducts = 1.5e7;
    const auto products = [&] {
      return static_cast<double>(pairs) * c.query_head_count *
             (c.head_dim_qk + c.head_dim_v);
    };
    if (products() > kMaxProducts) {
      c.query_head_count /= c.kv_head_count;
      c.kv_head_count = 1;
    }
    if (products() > kMaxProducts) c.query_head_count = 1;
    if (products() > kMaxProducts) c.head_dim_v = std::min(c.head_dim_v, 40);
    if (products() > kMaxProducts) c.head_dim_qk = std::min(c.head_dim_qk, 59);
  }

  // A prefix of `length` tokens that comes in up to three pieces, the last with
  // its queries.
  void CheckSequence(PagedSpec spec, int64_t queries, int64_t length) {
    LimitCost(queries * length, spec.config.heads);
    spec.page_count = PagesFor(spec.config, length) + 2;
    PagedProblem problem(spec, backend());
    const int64_t sequence = problem.Create();
    const int64_t last = Draw(0, 1) ? std::min(queries, length)
                                    : Draw(0, std::min<int64_t>(length, 70));
    const int64_t first = Draw(0, length - last);
    for (int64_t piece : {first, length - last - first}) {
      if (piece == 0) continue;
      ASSERT_TRUE(problem.Launch({{.sequence = sequence, .append = piece}}));
    }
    EXPECT_TRUE(problem.Launch(
        {RandomStep(spec.config.heads, sequence, last, queries, length)}));
  }
};

TEST_P(PagedSweepTest, EveryPageSizeAndType) {
  for (int32_t page_tokens : kPageTokens) {
    for (DataType type : kDataTypes) {
      for (KvDataType kv_type : kKvDataTypes) {
        PagedSpec spec = RandomSpec();
        spec.config.page_tokens = page_tokens;
        spec.config.heads.data_type = type;
        spec.config.kv_data_type = kv_type;
        CheckSequence(spec, Draw(1, 8), Draw(1, 600));
      }
    }
  }
}

TEST_P(PagedSweepTest, LengthsAroundPagesTilesAndSplits) {
  for (int64_t length : {0,   1,   2,   15,   16,   17,   63,   64,   65,
                         95,  96,  97,  127,  128,  129,  255,  256,  257,
                         511, 512, 513, 1023, 1024, 1025, 2047, 2048, 2049}) {
    for (int repeat = 0; repeat < 4; ++repeat) {
      CheckSequence(RandomSpec(), repeat == 0 ? 1 : Draw(1, 12), length);
    }
  }
}

TEST_P(PagedSweepTest, EveryNumberOfQueries) {
  for (int64_t queries = 1; queries <= 66; ++queries) {
    CheckSequence(RandomSpec(), queries, Draw(0, 500));
  }
  for (int64_t queries : {95, 96, 97, 128, 200, 300}) {
    CheckSequence(RandomSpec(), queries, Draw(0, 500));
  }
}

TEST_P(PagedSweepTest, EveryHeadDimAndType) {
  for (int32_t dim : kHeadDims) {
    for (DataType type : kDataTypes) {
      for (KvDataType kv_type : kKvDataTypes) {
        PagedSpec spec = RandomSpec();
        spec.config.heads.data_type = type;
        spec.config.kv_data_type = kv_type;
        spec.config.heads.head_dim_qk = dim;
        spec.config.heads.head_dim_v = Draw(0, 1) ? dim : Pick(kHeadDims);
        CheckSequence(spec, Draw(0, 1) ? 1 : Draw(1, 20), Draw(1, 200));
      }
    }
  }
}

TEST_P(PagedSweepTest, EveryGroupingOfHeads) {
  for (const auto& [query_heads, kv_heads] : kHeads) {
    for (DataType type : kDataTypes) {
      for (int64_t queries : {int64_t{1}, Draw(2, 20)}) {
        PagedSpec spec = RandomSpec();
        spec.config.heads.data_type = type;
        spec.config.heads.query_head_count = query_heads;
        spec.config.heads.kv_head_count = kv_heads;
        CheckSequence(spec, queries, Draw(1, 200));
      }
    }
  }
}

TEST_P(PagedSweepTest, EveryMaskWithEveryKindOfWindowAndSinks) {
  for (MaskKind mask : kMasks) {
    for (int64_t left : {kUnlimitedWindow, int64_t{0}, Draw(1, 90)}) {
      for (int64_t right : {kUnlimitedWindow, int64_t{0}, Draw(1, 90)}) {
        for (int64_t sinks : {int64_t{0}, int64_t{4}, Draw(5, 160)}) {
          PagedSpec spec = RandomSpec();
          spec.config.heads.mask = mask;
          const int64_t length = Draw(1, 300);
          const int64_t queries = Draw(0, 1) ? Draw(1, 3) : Draw(1, 160);
          LimitCost(queries * length, spec.config.heads);
          spec.page_count = PagesFor(spec.config, length) + 2;
          PagedProblem problem(spec, backend());
          PagedStep step = RandomStep(spec.config.heads, problem.Create(),
                                      length, queries, length);
          step.window_left = left;
          step.window_right = right;
          step.sink_tokens = sinks;
          EXPECT_TRUE(problem.Launch({step}));
        }
      }
    }
  }
}

TEST_P(PagedSweepTest, RaggedBatches) {
  for (int repeat = 0; repeat < 15; ++repeat) {
    PagedSpec spec = RandomSpec();
    LimitCost(12 * 20 * 150, spec.config.heads);
    spec.page_count = 12 * (PagesFor(spec.config, 200) + 1);
    PagedProblem problem(spec, backend());
    const int64_t count = Draw(2, 12);
    std::vector<PagedStep> prefixes;
    for (int64_t i = 0; i < count; ++i) {
      prefixes.push_back(
          {.sequence = problem.Create(), .append = Draw(0, 3) * Draw(0, 40)});
    }
    ASSERT_TRUE(problem.Launch(prefixes));
    for (int launch = 0; launch < 3; ++launch) {
      std::vector<PagedStep> steps;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t append = Draw(0, 2) ? 1 : Draw(0, 20);
        const int64_t queries = Draw(0, 4) ? append : Draw(0, 20);
        steps.push_back(RandomStep(spec.config.heads, i, append, queries,
                                   problem.length(i) + append));
      }
      std::shuffle(steps.begin(), steps.end(), random());
      ASSERT_TRUE(problem.Launch(steps));
    }
  }
}

TEST_P(PagedSweepTest, Anything) {
  for (int repeat = 0; repeat < 60; ++repeat) {
    CheckSequence(RandomSpec(), Draw(0, 100), Draw(0, 400));
  }
}

// Many pages, tiles and splits.
TEST_P(PagedSweepTest, LongSequences) {
  for (SplitPolicy split_policy :
       {SplitPolicy::kFixed, SplitPolicy::kBalanced}) {
    for (int32_t page_tokens : {16, 64, 256}) {
      const int64_t length = Draw(15000, 17000);
      PagedProblem problem(
          {.config = {.heads = {.data_type = Pick(kDataTypes),
                                .head_dim_qk = 64,
                                .head_dim_v = Draw(0, 1) ? 64 : 32,
                                .query_head_count = 2,
                                .kv_head_count = 1,
                                .mask = MaskKind::kCausalBottomRight},
                      .kv_data_type = Pick(kKvDataTypes),
                      .page_tokens = page_tokens,
                      .split_policy = split_policy},
           .page_count = length / page_tokens + 2,
           .seed = random()(),
           .page_seed = random()()},
          backend());
      const int64_t s = problem.Create();
      ASSERT_TRUE(problem.Launch({{.sequence = s, .append = length - 4}}));
      ASSERT_TRUE(problem.Launch({{.sequence = s, .append = 1, .queries = 1},
                                  {.sequence = s, .append = 3, .queries = 3}}));
      EXPECT_TRUE(problem.Launch({{.sequence = s,
                                   .queries = 4,
                                   .window_left = Draw(100, 5000),
                                   .sink_tokens = 4},
                                  {.sequence = s,
                                   .queries = 1,
                                   .keys = KeyRange{Draw(0, 7000), 14000}}}));
    }
  }
}

// Sequences of which some are cut, few and many rows together.
TEST_P(PagedSweepTest, LongAndShortSequencesTogether) {
  for (SplitPolicy split_policy :
       {SplitPolicy::kFixed, SplitPolicy::kBalanced}) {
    PagedSpec spec = RandomSpec();
    spec.config = {.heads = {.data_type = DataType::kBFloat16,
                             .head_dim_qk = 128,
                             .head_dim_v = 128,
                             .query_head_count = 2,
                             .kv_head_count = 1,
                             .mask = MaskKind::kCausalBottomRight},
                   .page_tokens = 64,
                   .split_policy = split_policy};
    spec.page_count = 420;
    PagedProblem problem(spec, backend());
    std::vector<PagedStep> prefixes;
    std::vector<PagedStep> steps;
    for (int64_t length : {9000, 1, 1030, 700, 6000, 0, 2500}) {
      const int64_t s = problem.Create();
      prefixes.push_back({.sequence = s, .append = length});
      const int64_t queries = s % 3 == 2 ? Draw(9, 40) : Draw(1, 3);
      steps.push_back({.sequence = s, .append = queries, .queries = queries});
    }
    ASSERT_TRUE(problem.Launch(prefixes));
    EXPECT_TRUE(problem.Launch(steps)) << ToString(spec);
  }
}

TEST_P(PagedSweepTest, NothingToDo) {
  PagedSpec spec = RandomSpec();
  PagedProblem problem(spec, backend());
  EXPECT_TRUE(problem.Launch({}));
  EXPECT_TRUE(problem.Launch({{.sequence = problem.Create()}}));
  spec.config.heads.query_head_count = spec.config.heads.kv_head_count = 0;
  PagedProblem no_heads(spec, backend());
  EXPECT_TRUE(no_heads.Launch(
      {{.sequence = no_heads.Create(), .append = 5, .queries = 2}}));
}

INSTANTIATE_FOR_BACKENDS(PagedSweepTest);

}  // namespace
}  // namespace attention::test
