// The sm_90 prefill kernels against the float64 reference: every instance,
// padded head dimensions, lengths around their tiles, packed query heads,
// windows, layouts, and what is not finite.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include "kernels/mask.h"
#include "tests/kernels/cuda/prefill_fixture.h"
#include "tests/support/comparison.h"

namespace attention::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Those that tensor copies can address, where head dimensions are multiples of
// eight.
constexpr Layout kLayouts[] = {Layout::kTokenMajor, Layout::kHeadMajor,
                               Layout::kPacked};

class PrefillSweepTest : public PrefillTest {
 protected:
  ProblemSpec Spec(const HeadConfig& config,
                   std::vector<SequenceSpec> sequences) {
    ProblemSpec spec{.config = config, .sequences = std::move(sequences)};
    spec.layout = Pick(kLayouts);
    spec.log_sum_exp = Draw(0, 3) > 0;
    spec.seed = random()();
    return spec;
  }

  // 1, around a tile, and within the one behind it.
  std::vector<int64_t> LengthsAround(int64_t tile) {
    return {1, tile - 1, tile, tile + 1, tile + Draw(2, tile)};
  }
};

TEST_P(PrefillSweepTest, EveryKernelIsChosenForItsDimensions) {
  std::set<const cuda::sm90::PrefillKernel*> kernels;
  ForEachKernelAndFloat8([&](DataType type, HeadDims dims) {
    const HeadConfig config = Heads(type, dims, 1, 1);
    // For few queries, for many keys, and for neither.
    for (const auto* kernel : {&KernelFor(config, 10), &KernelFor(config),
                               &KernelFor(config, 1000, 10000)}) {
      EXPECT_EQ(kernel->query_dims, dims.qk);
      EXPECT_EQ(kernel->value_dims, dims.v);
      kernels.insert(kernel);
    }
  });
  constexpr size_t kPerType = 8;
  EXPECT_EQ(kernels.size(), std::size(kPrefillTypes) * kPerType +
                                std::size(kFloat8KernelDims));
}

TEST_P(PrefillSweepTest, EveryHeadDimension) {
  for (DataType type : kPrefillTypes) {
    for (int32_t dim = 8; dim <= kMaxHeadDim; dim += 8) {
      const auto other = static_cast<int32_t>(8 * Draw(1, kMaxHeadDim / 8));
      for (HeadDims dims : {HeadDims{dim, dim}, {dim, other}, {other, dim}}) {
        const auto kv_heads = static_cast<int32_t>(Draw(1, 2));
        const auto group = static_cast<int32_t>(Draw(1, 3));
        Check(Spec(Heads(type, dims, kv_heads * group, kv_heads, Pick(kMasks)),
                   {{Draw(1, 150), Draw(1, 150)}, {Draw(1, 9), Draw(1, 150)}}));
      }
    }
  }
}

TEST_P(PrefillSweepTest, LengthsAroundTiles) {
  ForEachKernelAndFloat8([&](DataType type, HeadDims dims) {
    const auto& kernel = KernelFor(Heads(type, dims, 1, 1));
    for (MaskKind mask : kMasks) {
      std::vector<SequenceSpec> sequences;
      for (int64_t m : LengthsAround(kernel.block_m)) {
        for (int64_t n : LengthsAround(kernel.block_n)) {
          sequences.push_back({m, n});
        }
      }
      const auto& few = KernelFor(Heads(type, dims, 1, 1), 10);
      for (int64_t m : {int64_t{63}, int64_t{64}, int64_t{65}}) {
        for (int64_t n : LengthsAround(few.block_n))
          sequences.push_back({m, n});
      }
      Check(Spec(Heads(type, dims, 1, 1, mask), sequences));
    }
  });
}

// Rings and the order of steps, over many steps of keys and tiles of rows.
TEST_P(PrefillSweepTest, LongSequences) {
  ForEachKernelAndFloat8([&](DataType type, HeadDims dims) {
    for (MaskKind mask : kMasks) {
      Check(Spec(Heads(type, dims, 1, 1, mask),
                 {{Draw(1, 30), Draw(2000, 2500)},
                  {Draw(65, 90), Draw(3072, 3400)},
                  {Draw(2000, 2500), Draw(1, 30)},
                  {Draw(300, 400), Draw(300, 400)}}));
    }
  });
}

// Packed where the group is a power of two up to 64. Heads of neighbouring K/V
// heads share no tile.
TEST_P(PrefillSweepTest, EveryGroupOfHeads) {
  for (int32_t group : {1, 2, 4, 8, 16, 32, 64, 3, 5, 6, 7, 12, 128}) {
    for (DataType type : kPrefillTypes) {
      for (HeadDims dims : kKernelDims) {
        const int64_t block_m = KernelFor(Heads(type, dims, 1, 1)).block_m;
        const int64_t tile = std::max<int64_t>(block_m / group, 1);
        const auto kv_heads = static_cast<int32_t>(Draw(1, group < 32 ? 3 : 1));
        Check(Spec(Heads(type, dims, kv_heads * group, kv_heads, Pick(kMasks)),
                   {{1, Draw(1, 200)},
                    {tile, Draw(1, 90)},
                    {std::max<int64_t>(tile - 1, 1), Draw(1, 90)},
                    {tile + 1, Draw(1, 90)}}));
      }
    }
  }
}

TEST_P(PrefillSweepTest, EveryKindOfWindow) {
  ForEachKernelAndFloat8([&](DataType type, HeadDims dims) {
    for (MaskKind mask : kMasks) {
      std::vector<SequenceSpec> sequences;
      for (int64_t left :
           {kUnlimitedWindow, int64_t{0}, Draw(1, 40), Draw(41, 200)}) {
        for (int64_t right :
             {kUnlimitedWindow, int64_t{0}, Draw(1, 40), Draw(41, 200)}) {
          sequences.push_back({Draw(1, 200), Draw(1, 300), {}, left, right});
        }
      }
      Check(Spec(Heads(type, dims, 2, Draw(0, 1) ? 1 : 2, mask), sequences));
    }
  });
}

// Above the diagonal, and left of every key, also whole tiles of such rows.
TEST_P(PrefillSweepTest, RowsWithoutKeys) {
  ForEachKernelAndFloat8([&](DataType type, HeadDims dims) {
    const int64_t block_m = KernelFor(Heads(type, dims, 1, 1)).block_m;
    AttentionProblem above(
        Spec(Heads(type, dims, 1, 1, MaskKind::kCausalBottomRight),
             {{2 * block_m + 9, 7}, {40, 3}}));
    Check(above);
    EXPECT_EQ(above.Get(TensorRole::kOutput, 0, block_m, 0, 0), 0);
    AttentionProblem left(
        Spec(Heads(type, dims, 2, 1, MaskKind::kCausalTopLeft),
             {{2 * block_m + 9, 30, {}, 5}, {40, 30, {}, 0}}));
    Check(left);
    EXPECT_EQ(left.Get(TensorRole::kOutput, 0, 2 * block_m, 1, 0), 0);
  });
}

TEST_P(PrefillSweepTest, PositiveScales) {
  ForEachKernelAndFloat8([&](DataType type, HeadDims dims) {
    Check(Spec(Heads(type, dims, 2, 1, Pick(kMasks)),
               {{70, 150, 1e-6}, {70, 150, 0.5}, {70, 150, 1.0}}));
  });
}

TEST_P(PrefillSweepTest, ShiftedTensors) {
  for (DataType type : kPrefillTypes) {
    ProblemSpec spec = Spec(Heads(type, {128, 128}, 4, 2), {{150, 140}});
    spec.misalignment = 8;  // sixteen bytes, which tensor copies need
    Check(spec);
  }
}

// Keys and values that no query sees, behind and before those that one does,
// must not change a bit.
TEST_P(PrefillSweepTest, MaskedKeysAndValuesDoNotMatter) {
  ForEachKernelAndFloat8([&](DataType type, HeadDims dims) {
    const auto& kernel = KernelFor(Heads(type, dims, 1, 1));
    for (MaskKind mask : kMasks) {
      const int64_t m = kernel.block_m / 2 + Draw(1, 9);
      const int64_t window = Draw(0, 20);
      const int64_t n = m + 2 * kernel.block_n + Draw(1, 9);
      ProblemSpec spec =
          Spec(Heads(type, dims, 2, 1, mask), {{m, n, {}, window, window}});
      spec.log_sum_exp = true;
      AttentionProblem problem(spec);
      const KeyRange seen =
          MakeMaskBand(mask, problem.sequence(0)).VisibleKeys(0, m - 1);
      ASSERT_LT(seen.end - std::max<int64_t>(seen.begin, 0), n);
      std::vector<Bits> bits;
      for (float value : {0.0f, kNan, kInfinity, -kInfinity}) {
        for (int64_t key = 0; key < n; ++key) {
          if (seen.begin <= key && key < seen.end) continue;
          for (int32_t d = 0; d < dims.qk; ++d) {
            problem.Set(TensorRole::kKey, 0, key, 0, d, value);
          }
          for (int32_t d = 0; d < dims.v; ++d) {
            problem.Set(TensorRole::kValue, 0, key, 0, d, value);
          }
        }
        bits.push_back(ComputeBits(problem)[0]);
        EXPECT_TRUE(bits.back() == bits.front())
            << value << " in " << ToString(spec);
      }
    }
  });
}

// The comparison checks that what is not finite stands where the reference has
// it: in rows that see it, and of values in their column only.
TEST_P(PrefillSweepTest, NonFiniteElementsStayInTheRowsThatSeeThem) {
  ForEachKernelAndFloat8([&](DataType type, HeadDims dims) {
    for (MaskKind mask : kMasks) {
      const int64_t m = KernelFor(Heads(type, dims, 1, 1)).block_m + 30;
      AttentionProblem problem(
          Spec(Heads(type, dims, 2, 1, mask),
               {{m, m}, {m, m + 70, {}, 60, 40}, {m + 70, m}, {m, m}, {m, m}}));
      for (int64_t sequence : {0, 1, 2}) {
        for (float value : {kNan, kInfinity, -kInfinity}) {
          problem.Set(TensorRole::kValue, sequence, Draw(0, m - 1), 0,
                      static_cast<int32_t>(Draw(0, dims.v - 1)), value);
        }
      }
      problem.Set(TensorRole::kKey, 3, Draw(0, m - 1), 0,
                  static_cast<int32_t>(Draw(0, dims.qk - 1)), kNan);
      problem.Set(TensorRole::kQuery, 4, Draw(0, m - 1), Draw(0, 1),
                  static_cast<int32_t>(Draw(0, dims.qk - 1)), kNan);
      Check(problem);
    }
  });
}

TEST_P(PrefillSweepTest, NanInOneHeadLeavesThoseItIsPackedWithAlone) {
  ForEachKernelAndFloat8([&](DataType type, HeadDims dims) {
    ProblemSpec spec = Spec(Heads(type, dims, 8, 1), {{40, 70}});
    spec.log_sum_exp = false;
    AttentionProblem problem(spec);
    ASSERT_NO_FATAL_FAILURE(Compute(problem));
    const auto head = [&](int64_t h) {
      std::vector<float> values;
      for (int64_t i = 0; i < 40; ++i) {
        for (int32_t d = 0; d < dims.v; ++d) {
          values.push_back(problem.Get(TensorRole::kOutput, 0, i, h, d));
        }
      }
      return values;
    };
    std::vector<std::vector<float>> clean;
    for (int64_t h = 0; h < 8; ++h) clean.push_back(head(h));
    for (int64_t i = 0; i < 40; ++i) {
      problem.Set(TensorRole::kQuery, 0, i, 5, 0, kNan);
    }
    ASSERT_NO_FATAL_FAILURE(Compute(problem));
    for (int64_t h = 0; h < 8; ++h) {
      // A NaN is unequal to itself.
      EXPECT_EQ(head(h) == clean[h], h != 5) << "head " << h;
    }
  });
}

// The engine computes large requests in parts.
TEST_P(PrefillSweepTest, RowsCutAt128GiveTheSameBits) {
  ForEachKernelAndFloat8([&](DataType type, HeadDims dims) {
    constexpr int64_t kLength = 1160;
    ProblemSpec spec =
        Spec(Heads(type, dims, 1, 1, MaskKind::kCausalBottomRight),
             {{kLength, kLength}});
    spec.layout = Layout::kTokenMajor;
    spec.scales = HeadScales::kNone;  // the parts round to the same numbers
    AttentionProblem whole(spec);
    ASSERT_NO_FATAL_FAILURE(Compute(whole));
    for (int64_t cut : {128, 384, 1024}) {
      // The rows before the cut see no key behind it.
      ProblemSpec parts = spec;
      parts.sequences = {{cut, cut}, {kLength - cut, kLength}};
      AttentionProblem problem(parts);
      for (int64_t part : {0, 1}) {
        const int64_t first = part * cut;
        for (int64_t i = 0; i < parts.sequences[part].query_length; ++i) {
          for (int32_t d = 0; d < dims.qk; ++d) {
            problem.Set(TensorRole::kQuery, part, i, 0, d,
                        whole.Get(TensorRole::kQuery, 0, first + i, 0, d));
          }
        }
        for (int64_t j = 0; j < parts.sequences[part].key_length; ++j) {
          for (int32_t d = 0; d < dims.qk; ++d) {
            problem.Set(TensorRole::kKey, part, j, 0, d,
                        whole.Get(TensorRole::kKey, 0, j, 0, d));
          }
          for (int32_t d = 0; d < dims.v; ++d) {
            problem.Set(TensorRole::kValue, part, j, 0, d,
                        whole.Get(TensorRole::kValue, 0, j, 0, d));
          }
        }
      }
      ASSERT_NO_FATAL_FAILURE(Compute(problem));
      for (int64_t i = 0; i < kLength; ++i) {
        const int64_t part = i < cut ? 0 : 1;
        const int64_t row = i - part * cut;
        for (int32_t d = 0; d < dims.v; ++d) {
          ASSERT_EQ(problem.Get(TensorRole::kOutput, part, row, 0, d),
                    whole.Get(TensorRole::kOutput, 0, i, 0, d))
              << "row " << i << " cut at " << cut << " in " << ToString(spec);
        }
      }
    }
  });
}

TEST_P(PrefillSweepTest, EveryFloat8HeadDimension) {
  for (int32_t dim = 16; dim <= 128; dim += 16) {
    const auto other = static_cast<int32_t>(16 * Draw(1, 8));
    for (int32_t group : {1, 2, 3, 8, 16}) {
      Check(Spec(Heads(DataType::kFloat8E4M3, {dim, other}, group, 1,
                       Pick(kMasks)),
                 {{Draw(1, 150), Draw(1, 500)}, {Draw(1, 9), Draw(1, 900)}}));
    }
  }
}

// Tensor cores would lose most of such a sum; see NOTES.md.
TEST_P(PrefillSweepTest, Float8SumsOfManyKeysKeepTheirSize) {
  constexpr int64_t kKeys = 100000;
  ProblemSpec spec =
      Spec(Heads(DataType::kFloat8E4M3, {128, 128}, 1, 1), {{3, kKeys}});
  spec.scales = HeadScales::kNone;
  AttentionProblem problem(spec);
  problem.Fill(TensorRole::kQuery, 0, 0);
  problem.Fill(TensorRole::kValue, 0, 1.375f);
  ASSERT_NO_FATAL_FAILURE(Compute(problem));
  for (int32_t d = 0; d < 128; ++d) {
    EXPECT_NEAR(problem.Get(TensorRole::kOutput, 0, 1, 0, d), 1.375, 0.01);
  }
}

INSTANTIATE_FOR_CUDA(PrefillSweepTest);

}  // namespace
}  // namespace attention::test
