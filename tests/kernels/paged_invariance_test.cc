// What must not change a single bit of an answer: batch mates, where pages lie,
// what is in them beside the keys and values that are seen, repetition, thread
// count. And what the parts of a context have to do with the whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/support/kernel_backend.h"
#include "tests/support/paged_problem.h"

namespace attention::test {
namespace {

using Bits = std::vector<std::byte>;

class PagedInvarianceTest : public KernelTest {
 protected:
  PagedSpec RandomSpec() {
    constexpr int32_t kDims[] = {32, 59, 64, 128, 192};
    constexpr int32_t kPages[] = {1, 4, 16, 64};
    PagedSpec spec;
    HeadConfig& c = spec.config.heads;
    c.data_type = static_cast<DataType>(Draw(0, 2));
    c.mask = static_cast<MaskKind>(Draw(0, 2));
    c.head_dim_qk = Pick(kDims);
    c.head_dim_v = Pick(kDims);
    c.kv_head_count = static_cast<int32_t>(Draw(1, 2));
    c.query_head_count = c.kv_head_count * static_cast<int32_t>(Draw(1, 4));
    spec.config.kv_data_type = static_cast<KvDataType>(Draw(0, 1));
    spec.config.page_tokens = Pick(kPages);
    spec.page_count = 5 * (PagesFor(spec.config, 400) + 1);
    spec.layout = Pick(kAllLayouts);
    spec.seed = random()();
    spec.page_seed = random()();
    return spec;
  }

  std::vector<PagedStep> RandomSteps(int64_t count) {
    std::vector<PagedStep> steps;
    for (int64_t i = 0; i < count; ++i) {
      PagedStep step = {.sequence = i, .append = Draw(0, 40)};
      step.queries = Draw(0, 1) ? Draw(0, 3) : Draw(0, 40);
      if (Draw(0, 2) == 0) step.window_left = Draw(0, 200);
      if (Draw(0, 2) == 0) step.sink_tokens = Draw(0, 50);
      steps.push_back(step);
    }
    return steps;
  }

  // Prefixes for `steps`, which are then computed together.
  static void Compute(PagedProblem& problem,
                      const std::vector<int64_t>& prefixes,
                      const std::vector<PagedStep>& steps,
                      std::vector<Bits>* bits) {
    std::vector<PagedStep> first;
    for (int64_t prefix : prefixes) first.push_back({problem.Create(), prefix});
    ASSERT_TRUE(problem.Launch(first));
    ASSERT_TRUE(problem.Launch(steps));
    for (int64_t i = 0; i < std::ssize(steps); ++i) {
      bits->push_back(problem.OutputBits(i));
    }
  }

  std::vector<int64_t> RandomPrefixes(int64_t count) {
    std::vector<int64_t> prefixes;
    for (int64_t i = 0; i < count; ++i) prefixes.push_back(Draw(0, 350));
    return prefixes;
  }
};

TEST_P(PagedInvarianceTest, BatchMatesDoNotMatter) {
  for (int repeat = 0; repeat < 12; ++repeat) {
    PagedProblem problem(RandomSpec(), backend());
    std::vector<Bits> together;
    ASSERT_NO_FATAL_FAILURE(
        Compute(problem, RandomPrefixes(5), RandomSteps(5), &together));
    for (int64_t i = 0; i < 5; ++i) {
      ASSERT_TRUE(problem.Repeat(i, 1));
      EXPECT_EQ(problem.OutputBits(i), together[i]) << "step " << i;
    }
  }
}

TEST_P(PagedInvarianceTest, LongBatchMatesDoNotMatter) {
  PagedSpec spec = RandomSpec();
  spec.config.heads = {.data_type = DataType::kBFloat16,
                       .head_dim_qk = 64,
                       .head_dim_v = 64,
                       .query_head_count = 4,
                       .kv_head_count = 2};
  spec.config.page_tokens = 64;
  spec.page_count = 250;
  PagedProblem problem(spec, backend());
  std::vector<Bits> together;
  ASSERT_NO_FATAL_FAILURE(Compute(problem, {9000, 1, 1030, 3000},
                                  {{0, 1, 1}, {1, 1, 1}, {2, 1, 1}, {3, 2, 2}},
                                  &together));
  for (int64_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(problem.Repeat(i, 1));
    EXPECT_EQ(problem.OutputBits(i), together[i]) << "step " << i;
  }
  ASSERT_TRUE(problem.Repeat(2, 2));
  EXPECT_EQ(problem.OutputBits(2), together[2]);
  EXPECT_EQ(problem.OutputBits(3), together[3]);
}

TEST_P(PagedInvarianceTest, NeitherPageOrderNorWhatElseIsInPagesMatters) {
  for (int repeat = 0; repeat < 12; ++repeat) {
    PagedSpec spec = RandomSpec();
    const auto prefixes = RandomPrefixes(3);
    const auto steps = RandomSteps(3);
    std::vector<Bits> want;
    for (int fill : {0x00, 0xff, 0x7f, 0x7b, 0x3c}) {
      spec.page_fill = static_cast<std::byte>(fill);
      spec.page_seed = random()();
      PagedProblem problem(spec, backend());
      std::vector<Bits> bits;
      ASSERT_NO_FATAL_FAILURE(Compute(problem, prefixes, steps, &bits));
      if (want.empty()) want = bits;
      EXPECT_EQ(bits, want) << ToString(spec) << " fill " << fill;
    }
  }
}

// Tokens that no query sees, in pages that are read for their other tokens.
TEST_P(PagedInvarianceTest, UnseenTokensDoNotMatter) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (int repeat = 0; repeat < 12; ++repeat) {
    const PagedSpec spec = RandomSpec();
    const int64_t length = Draw(60, 350);
    const int64_t queries = Draw(0, 1) ? 1 : Draw(1, 40);
    const int64_t end = Draw(1, length);
    const KeyRange keys = {Draw(0, end - 1), end};
    const int64_t window = Draw(0, 60);
    const int64_t sinks = Draw(0, 10);
    // The first key in the window of the first query, wherever the mask is.
    const int64_t shown = (spec.config.heads.mask == MaskKind::kCausalTopLeft
                               ? 0
                               : length - queries) -
                          window;
    std::vector<Bits> want;
    for (bool poisoned : {false, true}) {
      PagedProblem problem(spec, backend());
      const int64_t s = problem.Create();
      problem.ChangeTensors([&](AttentionProblem& tensors) {
        const HeadConfig& c = spec.config.heads;
        for (int64_t token = 0; poisoned && token < length; ++token) {
          const bool in_range = keys.begin <= token && token < keys.end;
          if (in_range && (token >= shown || token < sinks)) continue;
          for (int32_t head = 0; head < c.kv_head_count; ++head) {
            for (int32_t d = 0; d < c.head_dim_qk; ++d) {
              tensors.Set(TensorRole::kKey, 0, token, head, d, kNan);
            }
            for (int32_t d = 0; d < c.head_dim_v; ++d) {
              tensors.Set(TensorRole::kValue, 0, token, head, d, kNan);
            }
          }
        }
      });
      ASSERT_TRUE(problem.Launch({{s, length}}));
      ASSERT_TRUE(problem.Launch({{.sequence = s,
                                   .queries = queries,
                                   .window_left = window,
                                   .sink_tokens = sinks,
                                   .keys = keys}}));
      if (!poisoned) {
        want.push_back(problem.OutputBits(0));
      } else {
        EXPECT_EQ(problem.OutputBits(0), want[0]) << ToString(spec);
      }
    }
  }
}

TEST_P(PagedInvarianceTest, RepetitionGivesTheSameBits) {
  for (int repeat = 0; repeat < 5; ++repeat) {
    PagedProblem problem(RandomSpec(), backend());
    std::vector<Bits> want;
    ASSERT_NO_FATAL_FAILURE(
        Compute(problem, RandomPrefixes(4), RandomSteps(4), &want));
    for (int again = 0; again < 4; ++again) {
      ASSERT_TRUE(problem.Repeat(0, 4));
      for (int64_t i = 0; i < 4; ++i) {
        EXPECT_EQ(problem.OutputBits(i), want[i]);
      }
    }
  }
}

// The same keys and values, whether they were appended one by one or at once,
// and through whose page table they are read.
TEST_P(PagedInvarianceTest, HowPagesCameToBeDoesNotMatter) {
  for (int repeat = 0; repeat < 6; ++repeat) {
    PagedSpec spec = RandomSpec();
    spec.page_count *= 2;
    PagedProblem problem(spec, backend());
    const int64_t a = problem.Create();
    ASSERT_TRUE(problem.Launch({{a, 150}}));
    const int64_t b = problem.Fork(a, 150);
    ASSERT_TRUE(problem.Launch({{a, 0, 3}}));
    const Bits want = problem.OutputBits(0);
    // The same queries through the fork's table.
    AttentionProblem& first = problem.tensors();
    std::vector<float> queries;
    const HeadConfig& c = spec.config.heads;
    const auto visit = [&](auto body) {
      for (int64_t i = 0; i < 3; ++i) {
        for (int32_t h = 0; h < c.query_head_count; ++h) {
          for (int32_t d = 0; d < c.head_dim_qk; ++d) body(i, h, d);
        }
      }
    };
    visit([&](int64_t i, int32_t h, int32_t d) {
      queries.push_back(first.Get(TensorRole::kQuery, 0, i, h, d));
    });
    problem.ChangeTensors([&](AttentionProblem& tensors) {
      size_t next = 0;
      visit([&](int64_t i, int32_t h, int32_t d) {
        tensors.Set(TensorRole::kQuery, 0, i, h, d, queries[next++]);
      });
    });
    ASSERT_TRUE(problem.Launch({{b, 0, 3}}));
    EXPECT_EQ(problem.OutputBits(0), want) << ToString(spec);
  }
}

// For memory checkers: reading one element too many is out of bounds here.
TEST_P(PagedInvarianceTest, TightAllocations) {
  for (int repeat = 0; repeat < 16; ++repeat) {
    PagedSpec spec = RandomSpec();
    const auto prefixes = RandomPrefixes(2);
    const auto steps = RandomSteps(2);
    std::vector<Bits> want;
    PagedProblem roomy(spec, backend());
    ASSERT_NO_FATAL_FAILURE(Compute(roomy, prefixes, steps, &want));
    spec.exact_allocations = true;
    spec.page_count = 0;
    for (int64_t i = 0; i < 2; ++i) {
      spec.page_count += PagesFor(spec.config, prefixes[i] + steps[i].append);
    }
    PagedProblem tight(spec, backend());
    std::vector<Bits> bits;
    ASSERT_NO_FATAL_FAILURE(Compute(tight, prefixes, steps, &bits));
    EXPECT_EQ(bits, want) << ToString(spec);
  }
}

// One context in several places: partial results over ranges of keys, merged by
// their log-sum-exps, are the result over all of them.
TEST_P(PagedInvarianceTest, PartsMergeToTheWhole) {
  for (int repeat = 0; repeat < 10; ++repeat) {
    PagedSpec spec = RandomSpec();
    spec.config.heads.data_type = DataType::kFloat32;
    PagedProblem problem(spec, backend());
    const int64_t s = problem.Create();
    const int64_t length = Draw(1, 380);
    ASSERT_TRUE(problem.Launch({{s, length}}));
    int64_t cuts[] = {0, Draw(0, length), Draw(0, length), length};
    std::sort(std::begin(cuts), std::end(cuts));

    const HeadConfig& c = spec.config.heads;
    const int64_t queries = Draw(1, 5);
    // The same queries in every step: those of the first.
    problem.ChangeTensors([&](AttentionProblem& tensors) {
      for (int64_t part = 1; part < 4; ++part) {
        for (int64_t i = 0; i < queries; ++i) {
          for (int32_t h = 0; h < c.query_head_count; ++h) {
            for (int32_t d = 0; d < c.head_dim_qk; ++d) {
              tensors.Set(TensorRole::kQuery, part, i, h, d,
                          tensors.Get(TensorRole::kQuery, 0, i, h, d));
            }
          }
        }
      }
    });
    PagedStep step = {.sequence = s, .queries = queries};
    if (Draw(0, 1)) step.window_left = Draw(0, length);
    step.sink_tokens = Draw(0, 20);
    std::vector<PagedStep> steps = {step};
    for (int part = 0; part < 3; ++part) {
      step.keys = KeyRange{cuts[part], cuts[part + 1]};
      steps.push_back(step);
    }
    ASSERT_TRUE(problem.Launch(steps));

    const AttentionProblem& got = problem.tensors();
    for (int64_t i = 0; i < queries; ++i) {
      for (int32_t h = 0; h < c.query_head_count; ++h) {
        const auto log_sum_exp = [&](int64_t part) {
          const Sequence& t = got.sequence(part);
          return static_cast<double>(
              t.log_sum_exp[i * t.log_sum_exp_token_stride +
                            h * t.log_sum_exp_head_stride]);
        };
        double sum = 0;
        const double whole = log_sum_exp(0);
        for (int64_t part = 1; part < 4; ++part) {
          if (std::isinf(log_sum_exp(part))) continue;
          sum += std::exp(log_sum_exp(part) - whole);
        }
        EXPECT_NEAR(sum, std::isinf(whole) ? 0 : 1, 1e-4) << ToString(spec);
        for (int32_t d = 0; d < c.head_dim_v; ++d) {
          double merged = 0;
          for (int64_t part = 1; part < 4; ++part) {
            if (std::isinf(log_sum_exp(part))) continue;
            merged += std::exp(log_sum_exp(part) - whole) *
                      got.Get(TensorRole::kOutput, part, i, h, d);
          }
          EXPECT_NEAR(merged, got.Get(TensorRole::kOutput, 0, i, h, d), 2e-4)
              << ToString(spec);
        }
      }
    }
  }
}

INSTANTIATE_FOR_BACKENDS(PagedInvarianceTest);

TEST(CpuPagedInvarianceTest, ThreadCountDoesNotMatter) {
  for (KvDataType kv_type : {KvDataType::kSame, KvDataType::kFloat8E4M3}) {
    const PagedSpec spec = {
        .config = {.heads = {.data_type = DataType::kBFloat16,
                             .head_dim_qk = 64,
                             .head_dim_v = 40,
                             .query_head_count = 6,
                             .kv_head_count = 3},
                   .kv_data_type = kv_type,
                   .page_tokens = 16},
        .page_count = 500,
        .seed = RunSeed()};
    std::vector<Bits> want;
    for (int threads : {1, 2, 3, 8}) {
      const auto backend = MakeCpuBackend(threads);
      PagedProblem problem(spec, *backend);
      std::vector<PagedStep> prefixes;
      for (int64_t prefix : {5000, 0, 70, 1100}) {
        prefixes.push_back({problem.Create(), prefix});
      }
      ASSERT_TRUE(problem.Launch(prefixes));
      ASSERT_TRUE(
          problem.Launch({{0, 1, 1}, {1, 3, 3}, {2, 0, 2}, {3, 90, 90}}));
      std::vector<Bits> bits;
      for (int64_t i = 0; i < 4; ++i) bits.push_back(problem.OutputBits(i));
      if (threads == 1) want = bits;
      EXPECT_EQ(bits, want) << threads << " threads";
    }
  }
}

}  // namespace
}  // namespace attention::test
