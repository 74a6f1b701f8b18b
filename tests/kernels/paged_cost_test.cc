#include <gtest/gtest.h>

#include <cstdint>

#include "kernels/cost.h"
#include "kernels/mask.h"

namespace attention {
namespace {

bool Sees(const MaskBand& band, int64_t query, int64_t key) {
  const KeyRange keys = band.VisibleKeys(query);
  return keys.begin <= key && key < keys.end;
}

bool Sees(const SinkMask& mask, int64_t query, int64_t key) {
  return Sees(mask.sinks, query, key) || Sees(mask.window, query, key);
}

template <typename Check>
void ForEachMask(Check check) {
  for (MaskKind mask : {MaskKind::kNone, MaskKind::kCausalTopLeft,
                        MaskKind::kCausalBottomRight}) {
    for (int64_t m : {0, 1, 3, 6}) {
      for (int64_t n : {0, 1, 4, 9}) {
        for (int64_t left : {-1, 0, 2}) {
          for (int64_t right : {-1, 0, 3}) {
            for (int64_t sinks : {0, 2, 20}) {
              for (int64_t begin : {int64_t{0}, n / 3, n}) {
                for (int64_t end : {begin, (begin + n) / 2, n}) {
                  PagedSequence s;
                  s.query_length = m;
                  s.key_length = n;
                  s.key_begin = begin;
                  s.key_end = end;
                  s.window_left = left;
                  s.window_right = right;
                  s.sink_tokens = sinks;
                  check(mask, s);
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST(PagedCostTest, FlopsAreOfTheVisiblePairs) {
  ForEachMask([](MaskKind mask, const PagedSequence& s) {
    PagedConfig config;
    config.heads = {.head_dim_qk = 3,
                    .head_dim_v = 5,
                    .query_head_count = 4,
                    .kv_head_count = 2,
                    .mask = mask};
    const SinkMask band = MakeSinkMask(mask, s);
    double pairs = 0;
    for (int64_t i = 0; i < s.query_length; ++i) {
      for (int64_t j = 0; j < s.key_length; ++j) pairs += Sees(band, i, j);
    }
    ASSERT_EQ(PagedFlops(config, s), 2 * pairs * 4 * (3 + 5));
  });
}

TEST(PagedCostTest, BytesAreOfTheKeysThatAreSeen) {
  ForEachMask([](MaskKind mask, const PagedSequence& s) {
    PagedConfig config;
    config.heads = {.data_type = DataType::kBFloat16,
                    .head_dim_qk = 16,
                    .head_dim_v = 8,
                    .query_head_count = 4,
                    .kv_head_count = 2,
                    .mask = mask};
    const SinkMask band = MakeSinkMask(mask, s);
    int64_t keys = 0;
    for (int64_t j = 0; j < s.key_length; ++j) {
      bool seen = false;
      for (int64_t i = 0; i < s.query_length; ++i) seen |= Sees(band, i, j);
      keys += seen;
    }
    ASSERT_EQ(PagedBytes(config, s), keys * 2.0 * (32 + 16));
  });
}

TEST(PagedCostTest, StoredElementsMayBeSmaller) {
  PagedConfig config;
  config.heads = {.data_type = DataType::kBFloat16,
                  .head_dim_qk = 128,
                  .head_dim_v = 128,
                  .query_head_count = 8,
                  .kv_head_count = 2};
  config.kv_data_type = KvDataType::kFloat8E4M3;
  PagedSequence s;
  s.query_length = 1;
  s.key_length = s.key_end = 1000;
  EXPECT_EQ(PagedBytes(config, s), 1000 * 2 * (128 + 128));
}

}  // namespace
}  // namespace attention
