#include "server/uploads/received_ranges.h"

#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace attention {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(ReceivedRangesTest, MergesWhatTouches) {
  ReceivedRanges received;
  received.Add({10, 20});
  received.Add({30, 40});
  EXPECT_THAT(received.ranges(), ElementsAre(Pair(10, 20), Pair(30, 40)));
  received.Add({20, 25});
  EXPECT_THAT(received.ranges(), ElementsAre(Pair(10, 25), Pair(30, 40)));
  received.Add({0, 35});
  EXPECT_THAT(received.ranges(), ElementsAre(Pair(0, 40)));
  received.Add({5, 5});
  EXPECT_THAT(received.ranges(), ElementsAre(Pair(0, 40)));
  EXPECT_EQ(received.received_bytes(), 40u);
}

TEST(ReceivedRangesTest, KnowsWhatIsMissing) {
  ReceivedRanges received;
  EXPECT_THAT(received.Missing({3, 3}), IsEmpty());
  EXPECT_THAT(received.Missing({0, 9}), ElementsAre(ByteRange{0, 9}));
  received.Add({2, 4});
  received.Add({6, 8});
  EXPECT_THAT(received.Missing({0, 9}),
              ElementsAre(ByteRange{0, 2}, ByteRange{4, 6}, ByteRange{8, 9}));
  EXPECT_THAT(received.Missing({3, 7}), ElementsAre(ByteRange{4, 6}));
  EXPECT_THAT(received.Missing({6, 8}), IsEmpty());
}

// Against one flag per byte.
TEST(ReceivedRangesTest, AgreesWithAPlainModel) {
  std::mt19937 random(testing::UnitTest::GetInstance()->random_seed() + 1u);
  SCOPED_TRACE(testing::UnitTest::GetInstance()->random_seed());
  for (int round = 0; round < 200; ++round) {
    constexpr size_t kSize = 60;
    std::vector<bool> model(kSize, false);
    ReceivedRanges received;
    for (int step = 0; step < 40; ++step) {
      const size_t begin = random() % kSize;
      const size_t end = begin + random() % (kSize - begin + 1) % 9;
      std::vector<bool> missing(kSize, false);
      for (const ByteRange& range : received.Missing({begin, end})) {
        ASSERT_LT(range.begin, range.end);
        for (size_t i = range.begin; i < range.end; ++i) missing[i] = true;
      }
      for (size_t i = 0; i < kSize; ++i) {
        ASSERT_EQ(missing[i], i >= begin && i < end && !model[i]);
      }
      const size_t expected_count = received.CountWith({begin, end});
      received.Add({begin, end});
      for (size_t i = begin; i < end; ++i) model[i] = true;
      ASSERT_EQ(received.ranges().size(), expected_count);

      std::vector<std::pair<size_t, size_t>> expected;
      size_t bytes = 0;
      for (size_t i = 0; i < kSize; ++i) {
        if (!model[i]) continue;
        ++bytes;
        if (i == 0 || !model[i - 1]) expected.emplace_back(i, i);
        expected.back().second = i + 1;
      }
      ASSERT_EQ(received.received_bytes(), bytes);
      ASSERT_THAT(received.ranges(),
                  testing::ElementsAreArray(expected.begin(), expected.end()));
    }
  }
}

}  // namespace
}  // namespace attention
