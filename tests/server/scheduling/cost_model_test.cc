#include "server/scheduling/cost_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "server/scheduling/device_load.h"

namespace attention {
namespace {

constexpr absl::Duration kMs = absl::Milliseconds(1);
const absl::Time kStart = absl::FromUnixSeconds(1000);

// What a device is like.
struct Truth {
  double launch;
  double bytes_per_second;
  double flops_per_second;

  absl::Duration Of(const WorkCost& cost) const {
    return absl::Seconds(launch + cost.bytes / bytes_per_second +
                         cost.flops / flops_per_second);
  }
};

class CostModelTest : public testing::Test {
 protected:
  // Predicted by true time.
  double Ratio(const WorkCost& cost, const Truth& truth) const {
    return absl::FDivDuration(model_.Launch(0, 0) + model_.Added(0, 0, cost),
                              truth.Of(cost));
  }
  void Observe(const WorkCost& cost, absl::Duration time) {
    model_.Observe(0, 0, cost, time);
  }
  absl::Duration Predict(const WorkCost& cost) const {
    return model_.Launch(0, 0) + model_.Added(0, 0, cost);
  }

  const std::vector<DeviceDescription> devices_ = {
      {.name = "cuda:0", .backend = "cuda"}, {.name = "cpu:0", .backend = "cpu"}};
  CostModel model_{devices_};
};

TEST_F(CostModelTest, CountsOperationsAndBytes) {
  AttentionWork work;
  work.config = {.head_dim_qk = 64,
                 .head_dim_v = 32,
                 .query_head_count = 4,
                 .kv_head_count = 2};
  work.sequences.resize(2);
  work.sequences[0].shape.query_length = 3;
  work.sequences[0].shape.key_length = 5;
  work.sequences[1].shape.query_length = 1;
  work.sequences[1].shape.key_length = 7;
  work.query.fragments = {"12345", "67"};
  work.output_bytes = 11;
  work.weights_bytes = 2;
  const WorkCost cost = CostOf(work);
  EXPECT_EQ(cost.flops, 2.0 * (3 * 5 + 1 * 7) * 4 * (64 + 32));
  EXPECT_EQ(cost.bytes, 7 + 13);
}

TEST_F(CostModelTest, CountsResidentKeysAsFarAsTheyAreKnown) {
  AttentionWork work;
  work.config = {.data_type = DataType::kBFloat16,
                 .head_dim_qk = 64,
                 .head_dim_v = 32,
                 .query_head_count = 4,
                 .kv_head_count = 2,
                 .mask = MaskKind::kCausalBottomRight};
  work.page_tokens = 16;
  work.sequences.resize(3);
  work.kv_steps.resize(3);
  work.sequences[0].shape.query_length = 1;
  work.sequences[0].shape.key_length = 100;
  // Part of the keys.
  work.sequences[1].shape.query_length = 1;
  work.sequences[1].shape.key_length = 50;
  work.kv_steps[1].key_range = KeyRange{10, 30};
  // An append alone.
  work.sequences[2].shape.key_length = 1000;
  work.kv_steps[2].append_length = 7;
  work.key.fragments = {"1234567"};
  const WorkCost cost = CostOf(work);
  EXPECT_EQ(cost.flops, 2.0 * (100 + 20) * 4 * (64 + 32));
  EXPECT_EQ(cost.resident_bytes, (100 + 20) * 2 * 2 * (64 + 32));
  EXPECT_EQ(cost.bytes, 7);
}

TEST_F(CostModelTest, LearnsHowFastResidentKeysAreRead) {
  const WorkCost short_keys = {.bytes = 1e4, .resident_bytes = 1e6};
  const WorkCost long_keys = {.bytes = 1e4, .resident_bytes = 1e9};
  for (int i = 0; i < 200; ++i) {
    Observe(short_keys, absl::Microseconds(30));
    Observe(long_keys, absl::Microseconds(30 + 250));
  }
  EXPECT_NEAR(absl::FDivDuration(Predict(short_keys), absl::Microseconds(30)), 1,
              0.1);
  EXPECT_NEAR(absl::FDivDuration(Predict(long_keys), absl::Microseconds(280)), 1,
              0.1);
}

TEST_F(CostModelTest, ClassesAreTypesAndAlgorithmsAndResidentTypes) {
  std::vector<int> seen(kCostClassCount);
  for (auto type :
       {DataType::kFloat32, DataType::kFloat16, DataType::kBFloat16}) {
    for (auto algorithm : {Algorithm::kStreaming, Algorithm::kThreeStep}) {
      ++seen.at(CostClassOf({.data_type = type, .algorithm = algorithm}));
    }
    ++seen.at(CostClassOf({.data_type = type}, /*is_resident=*/true));
  }
  ++seen.at(CostClassOf({.data_type = DataType::kFloat8E4M3}));
  EXPECT_EQ(seen, std::vector<int>(kCostClassCount, 1));
}

TEST_F(CostModelTest, ATimeIsLearnedByTheFirstBatch) {
  const WorkCost cost = {.flops = 1e9, .bytes = 1e6};
  Observe(cost, absl::Seconds(3));
  EXPECT_NEAR(absl::FDivDuration(Predict(cost), absl::Seconds(3)), 1, 0.6);
  for (int i = 0; i < 40; ++i) Observe(cost, absl::Seconds(3));
  EXPECT_NEAR(absl::FDivDuration(Predict(cost), absl::Seconds(3)), 1, 0.01);
}

TEST_F(CostModelTest, DevicesAndClassesLearnApart) {
  const absl::Duration other_class = model_.Launch(0, 1);
  const absl::Duration other_device = model_.Launch(1, 0);
  for (int i = 0; i < 20; ++i) Observe({}, absl::Seconds(1));
  EXPECT_NEAR(absl::ToDoubleSeconds(model_.Launch(0, 0)), 1, 1e-6);
  EXPECT_EQ(model_.Launch(0, 1), other_class);
  EXPECT_EQ(model_.Launch(1, 0), other_device);
}

// Batches of all sizes, with noise, on devices far from the initial guess.
TEST_F(CostModelTest, LearnsLaunchBytesAndFlopsFromAMixture) {
  for (const Truth& truth : {Truth{3e-6, 50e9, 400e12}, Truth{5e-3, 1e9, 1e9},
                             Truth{100e-6, 10e9, 30e12}}) {
    model_ = CostModel(devices_);
    std::mt19937_64 random(1);
    std::uniform_real_distribution<double> uniform(0, 1);
    const auto any = [&] {
      return WorkCost{.flops = std::pow(10, 6 + 7 * uniform(random)),
                      .bytes = std::pow(10, 3 + 5 * uniform(random))};
    };
    for (int i = 0; i < 2000; ++i) {
      const WorkCost cost = any();
      Observe(cost, truth.Of(cost) * (0.9 + 0.2 * uniform(random)));
    }
    double mean_error = 0;
    for (int i = 0; i < 200; ++i) {
      mean_error += std::abs(std::log(Ratio(any(), truth))) / 200;
    }
    EXPECT_LT(mean_error, 0.25);
    ASSERT_TRUE(model_.Margin(0, 0).has_value());
    EXPECT_LT(*model_.Margin(0, 0), 3);
  }
}

TEST_F(CostModelTest, AnOutlierMovesLittle) {
  const WorkCost cost = {.flops = 1e9, .bytes = 1e6};
  for (int i = 0; i < 50; ++i) Observe(cost, 10 * kMs);
  Observe(cost, absl::Hours(1));
  EXPECT_LT(Predict(cost), 10.8 * kMs);
  for (int i = 0; i < 50; ++i) Observe(cost, 10 * kMs);
  Observe(cost, absl::Nanoseconds(1));
  EXPECT_GT(Predict(cost), 9.2 * kMs);
}

TEST_F(CostModelTest, ALastingChangeIsLearned) {
  const WorkCost cost = {.flops = 1e9, .bytes = 1e6};
  for (int i = 0; i < 50; ++i) Observe(cost, kMs);
  for (int i = 0; i < 100; ++i) Observe(cost, 20 * kMs);
  EXPECT_NEAR(absl::FDivDuration(Predict(cost), 20 * kMs), 1, 0.1);
}

TEST_F(CostModelTest, IgnoresTimesThatSayNothing) {
  const absl::Duration before = Predict({});
  Observe({}, absl::ZeroDuration());
  Observe({}, -kMs);
  Observe({}, absl::InfiniteDuration());
  EXPECT_EQ(Predict({}), before);
}

TEST_F(CostModelTest, TheMarginFollowsTheError) {
  const WorkCost cost = {.flops = 1e9, .bytes = 1e6};
  for (int i = 0; i < 15; ++i) {
    Observe(cost, kMs);
    EXPECT_FALSE(model_.Margin(0, 0).has_value());
  }
  for (int i = 0; i < 50; ++i) Observe(cost, kMs);
  EXPECT_EQ(model_.Margin(0, 0), 1.5);
  // Now times vary by a factor of 4 up and down.
  for (int i = 0; i < 50; ++i) Observe(cost, i % 2 == 0 ? kMs / 4 : 4 * kMs);
  EXPECT_GT(*model_.Margin(0, 0), 8);
}

TEST_F(CostModelTest, SumsNeverFallBelowZero) {
  WorkCost cost = {.flops = 0.1, .bytes = 1};
  cost += {.flops = 0.2, .bytes = 2};
  cost -= {.flops = 0.3 + 1e-9, .bytes = 3.5};
  EXPECT_EQ(cost.flops, 0);
  EXPECT_EQ(cost.bytes, 0);
}

TEST(DeviceLoadTest, OverlappingBatchesShareTheTime) {
  DeviceLoad load(2);
  EXPECT_EQ(load.free_slots(), 2);
  const uint64_t a = load.Start(8 * kMs, kStart);
  EXPECT_EQ(load.Remaining(kStart + 2 * kMs), 6 * kMs);
  const uint64_t b = load.Start(3 * kMs, kStart + 2 * kMs);
  EXPECT_EQ(load.free_slots(), 0);
  // For 4 ms both are there.
  EXPECT_EQ(load.Remaining(kStart + 6 * kMs), 4 * kMs + 1 * kMs);
  const auto second = load.Finish(b, kStart + 6 * kMs);
  EXPECT_EQ(second.predicted, 3 * kMs);
  EXPECT_EQ(second.taken, 2 * kMs);
  EXPECT_EQ(load.Finish(a, kStart + 9 * kMs).taken, 7 * kMs);
  EXPECT_EQ(load.Remaining(kStart + 9 * kMs), absl::ZeroDuration());
  // Nobody pays for idle time.
  const uint64_t c = load.Start(kMs, kStart + 100 * kMs);
  EXPECT_EQ(load.Finish(c, kStart + 101 * kMs).taken, kMs);
}

TEST(DeviceLoadTest, TellsTheEarliestFreeSlot) {
  DeviceLoad load(2);
  load.Start(8 * kMs, kStart);
  EXPECT_EQ(load.EarliestSlot(2, kStart), absl::ZeroDuration());
  load.Start(6 * kMs, kStart);
  EXPECT_EQ(load.EarliestSlot(1, kStart), 6 * kMs);
  EXPECT_EQ(load.EarliestSlot(2, kStart), 3 * kMs);
  EXPECT_EQ(load.EarliestSlot(2, kStart + 4 * kMs), 1 * kMs);
  EXPECT_EQ(load.EarliestSlot(2, kStart + 40 * kMs), absl::ZeroDuration());
}

TEST(DeviceLoadTest, BearsAClockThatGoesBack) {
  DeviceLoad load(1);
  const uint64_t a = load.Start(kMs, kStart);
  EXPECT_EQ(load.Finish(a, kStart - absl::Seconds(9)).taken,
            absl::ZeroDuration());
}

}  // namespace
}  // namespace attention
