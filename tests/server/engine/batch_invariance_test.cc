// An answer alone equals, bit for bit, the same answer in a batch, whatever the
// size and place of its mates, one of them full of NaN.
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/server/engine/engine_fixture.h"

namespace attention::test {
namespace {

using Requests = std::vector<std::unique_ptr<TestRequest>>;

constexpr HeadConfig kGrouped = {.query_head_count = 6, .kv_head_count = 2};

class BatchInvarianceTest : public EngineTest {};
INSTANTIATE_FOR_ENGINES(BatchInvarianceTest);

TEST_P(BatchInvarianceTest, AnswersDoNotDependOnTheirMates) {
  std::mt19937 random(7);
  const auto below = [&](int64_t bound) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(bound));
  };
  for (int round = 0; round < 24; ++round) {
    SCOPED_TRACE(round);
    HeadConfig config = kGrouped;
    config.data_type = static_cast<DataType>(round % 3);
    config.mask =
        round % 2 == 0 ? MaskKind::kNone : MaskKind::kCausalBottomRight;
    config.head_dim_qk = config.head_dim_v = round % 4 < 2 ? 64 : 128;
    const auto any_spec = [&] {
      WorkSpec spec = {.config = config, .log_sum_exp = below(2) == 0};
      for (int64_t i = below(3); i >= 0; --i) {
        spec.lengths.push_back({below(4) == 0 ? below(80) : 1, below(150)});
      }
      spec.fragment_bytes = below(2) == 0 ? 1000 : 0;
      spec.seed = random();
      return spec;
    };
    const WorkSpec spec = any_spec();
    Requests alone;
    alone.push_back(std::make_unique<TestRequest>(spec));
    RunAndWait(device(), MakeBatch(alone));
    ASSERT_TRUE(alone[0]->AnsweredRight());

    std::vector<WorkSpec> mates(1 + below(8));
    for (WorkSpec& mate : mates) mate = any_spec();
    mates[below(static_cast<int64_t>(mates.size()))].all_nan = true;
    const int64_t place = below(static_cast<int64_t>(mates.size()) + 1);
    mates.insert(mates.begin() + place, spec);
    Requests together;
    for (const WorkSpec& mate : mates) {
      together.push_back(std::make_unique<TestRequest>(mate));
    }
    RunAndWait(device(), MakeBatch(together));
    ASSERT_TRUE(together[place]->Wait().ok());
    EXPECT_EQ(together[place]->Wait()->batch_request_count,
              static_cast<int>(mates.size()));
    EXPECT_TRUE(alone[0]->ResultBits() == together[place]->ResultBits());
  }
}

}  // namespace
}  // namespace attention::test
