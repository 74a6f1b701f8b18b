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

constexpr HeadConfig kGrouped = {.query_head_count = 6, .kv_head_count = 2};

class BatchInvarianceTest : public EngineTest {};
INSTANTIATE_FOR_ENGINES(BatchInvarianceTest);

TEST_P(BatchInvarianceTest, AnswersDoNotDependOnTheirMates) {
  std::mt19937 random(7);
  const auto below = [&](int64_t bound) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(bound));
  };
  for (int round = 0; round < 32; ++round) {
    SCOPED_TRACE(round);
    HeadConfig config = kGrouped;
    config.data_type = static_cast<DataType>(round / 4 % 4);
    config.mask =
        round % 2 == 0 ? MaskKind::kNone : MaskKind::kCausalBottomRight;
    config.head_dim_qk = config.head_dim_v = round % 4 < 2 ? 64 : 128;
    const auto any_spec = [&] {
      WorkSpec spec = {.config = config, .log_sum_exp = below(2) == 0};
      for (int64_t i = below(3); i >= 0; --i) {
        spec.lengths.push_back({below(4) == 0 ? below(80) : 1, below(150)});
      }
      spec.fragment_bytes = below(2) == 0 ? 1000 : 0;
      // Mates have scales of their own, or none.
      spec.scales = config.data_type == DataType::kFloat8E4M3 && below(3) > 0;
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

// A GPU computes a large answer in parts if it is alone in its batch.
TEST_P(BatchInvarianceTest, LargeAnswersAreTheSameInParts) {
  if (GetParam() == EngineBackend::kCpu) GTEST_SKIP() << "computes them whole";
  HeadConfig config = {.data_type = DataType::kBFloat16,
                       .head_dim_qk = 128,
                       .head_dim_v = 128,
                       .query_head_count = 8,
                       .kv_head_count = 4};
  std::vector<WorkSpec> specs;
  const auto add = [&](MaskKind mask, int64_t queries, int64_t keys) {
    config.mask = mask;
    specs.push_back({.config = config,
                     .lengths = {{queries, keys}},
                     .log_sum_exp = true,
                     .seed = specs.size() + 1});
    return &specs.back();
  };
  add(MaskKind::kCausalBottomRight, 2201, 2201);
  add(MaskKind::kCausalBottomRight, 2200, 2456);
  add(MaskKind::kCausalBottomRight, 2300, 2300)->window_left = 300;
  add(MaskKind::kCausalTopLeft, 2201, 2201);
  add(MaskKind::kCausalTopLeft, 2176, 2300);
  add(MaskKind::kNone, 2333, 777);
  add(MaskKind::kNone, 2200, 301)->heads_first = true;
  add(MaskKind::kCausalBottomRight, 2200, 2100)->heads_first = true;
  config.data_type = DataType::kFloat16;
  config.head_dim_v = 64;
  add(MaskKind::kCausalBottomRight, 4500, 4500)->window_left = 1000;
  config.data_type = DataType::kFloat8E4M3;
  config.head_dim_v = 128;
  add(MaskKind::kCausalBottomRight, 2200, 2456)->scales = true;
  WorkSpec* const by_heads = add(MaskKind::kNone, 2200, 301);
  by_heads->scales = by_heads->heads_first = true;
  config.head_dim_v = 64;
  config.data_type = DataType::kFloat32;
  for (Precision precision : {Precision::kIeee, Precision::kTf32}) {
    config.precision = precision;
    add(MaskKind::kCausalBottomRight, 2201, 2201)->window_left = 500;
  }
  config.mask = MaskKind::kNone;
  specs.push_back(
      {.config = config, .lengths = {{900, 70}, {0, 5}, {40, 9}, {1300, 80}}});
  for (const WorkSpec& spec : specs) {
    SCOPED_TRACE(testing::Message()
                 << "spec " << &spec - specs.data() << " of " << specs.size());
    FakeCudaRuntime* const fake = engine().fake_cuda();
    const int before = fake != nullptr ? fake->launches() : 0;
    Requests alone;
    alone.push_back(std::make_unique<TestRequest>(spec));
    RunAndWait(device(), MakeBatch(alone));
    if (fake != nullptr) {
      // Computes as the CPU does, which promises nothing about parts.
      EXPECT_GT(fake->launches(), before + 1);
      EXPECT_TRUE(alone[0]->Wait().ok());
      continue;
    }
    Requests together;
    together.push_back(std::make_unique<TestRequest>(spec));
    WorkSpec mate = spec;
    mate.lengths = {{1, 1}};
    together.push_back(std::make_unique<TestRequest>(mate));
    RunAndWait(device(), MakeBatch(together));
    ASSERT_TRUE(alone[0]->Wait().ok());
    EXPECT_TRUE(alone[0]->ResultBits() == together[0]->ResultBits());
  }
}

}  // namespace
}  // namespace attention::test
