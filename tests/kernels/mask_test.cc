#include "kernels/mask.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/cost.h"

namespace attention {
namespace {

// The definition, pair by pair, in the words of attention_params.h.
bool IsVisible(MaskKind mask, const Sequence& s, int64_t i, int64_t j) {
  const int64_t diagonal =
      mask == MaskKind::kCausalTopLeft ? i : i + s.key_length - s.query_length;
  if (mask != MaskKind::kNone && j > diagonal) return false;
  if (s.window_left != kUnlimitedWindow && j < diagonal - s.window_left) {
    return false;
  }
  if (s.window_right != kUnlimitedWindow && j > diagonal + s.window_right) {
    return false;
  }
  return true;
}

template <typename Check>
void ForEachMask(Check check) {
  const int64_t lengths[] = {0, 1, 2, 5, 9};
  const int64_t windows[] = {kUnlimitedWindow, 0, 1, 3, 20, int64_t{1} << 62};
  for (MaskKind mask : {MaskKind::kNone, MaskKind::kCausalTopLeft,
                        MaskKind::kCausalBottomRight}) {
    for (int64_t m : lengths) {
      for (int64_t n : lengths) {
        for (int64_t left : windows) {
          for (int64_t right : windows) {
            Sequence s;
            s.query_length = m;
            s.key_length = n;
            s.window_left = left;
            s.window_right = right;
            SCOPED_TRACE(testing::Message()
                         << "mask " << static_cast<int>(mask) << " M " << m
                         << " N " << n << " window " << left << ", " << right);
            check(mask, s);
          }
        }
      }
    }
  }
}

TEST(MaskBandTest, VisibleKeysAreThoseOfTheDefinition) {
  ForEachMask([](MaskKind mask, const Sequence& s) {
    const MaskBand band = MakeMaskBand(mask, s);
    for (int64_t i = 0; i < s.query_length; ++i) {
      const KeyRange keys = band.VisibleKeys(i);
      for (int64_t j = 0; j < s.key_length; ++j) {
        ASSERT_EQ(keys.begin <= j && j < keys.end, IsVisible(mask, s, i, j))
            << "query " << i << " key " << j;
      }
      ASSERT_GE(keys.begin, 0);
      ASSERT_LE(keys.end, s.key_length);
    }
  });
}

TEST(MaskBandTest, RangeOfSeveralQueriesCoversEachOfThem) {
  ForEachMask([](MaskKind mask, const Sequence& s) {
    const MaskBand band = MakeMaskBand(mask, s);
    for (int64_t first = 0; first < s.query_length; ++first) {
      for (int64_t last = first; last < s.query_length; ++last) {
        const KeyRange all = band.VisibleKeys(first, last);
        for (int64_t i = first; i <= last; ++i) {
          const KeyRange keys = band.VisibleKeys(i);
          if (keys.begin >= keys.end) continue;
          ASSERT_LE(all.begin, keys.begin);
          ASSERT_GE(all.end, keys.end);
        }
      }
    }
  });
}

TEST(MaskBandTest, SeesAllOnlyIfEveryPairIsVisible) {
  ForEachMask([](MaskKind mask, const Sequence& s) {
    const MaskBand band = MakeMaskBand(mask, s);
    for (int64_t first = 0; first < s.query_length; ++first) {
      for (int64_t last = first; last < s.query_length; ++last) {
        for (int64_t begin = 0; begin < s.key_length; ++begin) {
          for (int64_t end = begin + 1; end <= s.key_length; ++end) {
            bool all = true;
            for (int64_t i = first; i <= last; ++i) {
              for (int64_t j = begin; j < end; ++j) {
                all = all && IsVisible(mask, s, i, j);
              }
            }
            ASSERT_EQ(band.SeesAll(first, last, {begin, end}), all)
                << "queries " << first << "-" << last << " keys [" << begin
                << ", " << end << ")";
          }
        }
      }
    }
  });
}

TEST(CostTest, VisiblePairCountEqualsCounting) {
  ForEachMask([](MaskKind mask, const Sequence& s) {
    int64_t count = 0;
    for (int64_t i = 0; i < s.query_length; ++i) {
      for (int64_t j = 0; j < s.key_length; ++j) {
        count += IsVisible(mask, s, i, j);
      }
    }
    ASSERT_EQ(VisiblePairCount(mask, s), count);
  });
}

TEST(CostTest, VisiblePairCountDoesNotOverflowForLongSequences) {
  Sequence s;
  s.query_length = s.key_length = int64_t{1} << 31;
  EXPECT_EQ(VisiblePairCount(MaskKind::kNone, s), int64_t{1} << 62);
  EXPECT_EQ(VisiblePairCount(MaskKind::kCausalBottomRight, s),
            (int64_t{1} << 61) + (int64_t{1} << 30));
}

TEST(SinkMaskTest, BandsHaveTheKeysOfTheDefinitionOnceAndInOrder) {
  ForEachMask([](MaskKind mask, const Sequence& plain) {
    for (int64_t sinks : {0, 1, 4, 100}) {
      for (const KeyRange range : {KeyRange{0, plain.key_length},
                                   {0, plain.key_length / 2},
                                   {plain.key_length / 2, plain.key_length},
                                   {1, 1}}) {
        if (range.end > plain.key_length) continue;
        PagedSequence s;
        s.query_length = plain.query_length;
        s.key_length = plain.key_length;
        s.window_left = plain.window_left;
        s.window_right = plain.window_right;
        s.sink_tokens = sinks;
        s.key_begin = range.begin;
        s.key_end = range.end;
        Sequence no_left = plain;
        no_left.window_left = kUnlimitedWindow;
        const SinkMask got = MakeSinkMask(mask, s);
        for (int64_t i = 0; i < s.query_length; ++i) {
          const KeyRange first = got.sinks.VisibleKeys(i);
          const KeyRange second = got.window.VisibleKeys(i);
          if (first.begin < first.end && second.begin < second.end) {
            ASSERT_LE(first.end, second.begin);
          }
          for (int64_t j = 0; j < s.key_length; ++j) {
            const bool want = range.begin <= j && j < range.end &&
                              (IsVisible(mask, plain, i, j) ||
                               (j < sinks && IsVisible(mask, no_left, i, j)));
            const bool in_first = first.begin <= j && j < first.end;
            const bool in_second = second.begin <= j && j < second.end;
            ASSERT_EQ(in_first || in_second, want)
                << "query " << i << " key " << j << " sinks " << sinks
                << " range " << range.begin << ", " << range.end;
          }
        }
      }
    }
  });
}

TEST(CostTest, FlopsCountBothProductsOverVisiblePairs) {
  HeadConfig config;
  config.head_dim_qk = 3;
  config.head_dim_v = 5;
  config.query_head_count = 4;
  config.kv_head_count = 2;
  config.mask = MaskKind::kCausalTopLeft;
  Sequence s;
  s.query_length = s.key_length = 2;  // 3 visible pairs
  EXPECT_EQ(AttentionFlops(config, s), 2.0 * 3 * 4 * (3 + 5));
}

TEST(CostTest, BytesCountEachTensorOnce) {
  HeadConfig config;
  config.data_type = DataType::kBFloat16;
  config.head_dim_qk = 3;
  config.head_dim_v = 5;
  config.query_head_count = 4;
  config.kv_head_count = 2;
  Sequence s;
  s.query_length = 7;
  s.key_length = 11;
  const int64_t query_and_output = 7 * 4 * (3 + 5);
  const int64_t key_and_value = 11 * 2 * (3 + 5);
  EXPECT_EQ(AttentionBytes(config, s),
            2.0 * (query_and_output + key_and_value));
  config.data_type = DataType::kFloat8E4M3;
  const int64_t more_of_output = 7 * 4 * 5;  // which is bf16
  EXPECT_EQ(AttentionBytes(config, s),
            query_and_output + key_and_value + more_of_output);
}

}  // namespace
}  // namespace attention
