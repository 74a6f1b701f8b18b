// Devices of known speeds, by a clock that they move themselves.
#include "server/scheduling/calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "kernels/cost.h"
#include "server/metrics/metrics.h"
#include "server/scheduling/scheduler.h"
#include "tests/server/scheduling/probe.h"
#include "tests/support/fake_clock.h"

namespace attention {
namespace {

using ::testing::Each;
using ::testing::Field;

// Takes exactly the time that it is told to, and answers before Run returns.
class TimedDevice final : public Device {
 public:
  TimedDevice(FakeClock* clock, double launch, double per_byte, double per_flop)
      : clock_(*clock),
        launch_(launch),
        per_byte_(per_byte),
        per_flop_(per_flop) {}

  const DeviceDescription& description() const override { return description_; }
  int slot_count() const override { return 1; }
  absl::Status health() const override { return absl::OkStatus(); }
  void Run(std::unique_ptr<Batch> batch,
           absl::AnyInvocable<void()> slot_free) override {
    WorkCost cost;
    for (const auto& work : batch->works) cost += CostOf(*work);
    clock_.Advance(TimeOf(cost));
    batches_.push_back(*batch);
    for (const auto& work : batch->works) {
      if (answer_.ok()) {
        work->done(WorkResult());
      } else {
        work->done(answer_);
      }
    }
    slot_free();
  }

  absl::Duration TimeOf(const WorkCost& cost) const {
    return absl::Seconds(launch_ + per_byte_ * cost.bytes +
                         per_flop_ * cost.flops);
  }
  void FailWith(absl::Status answer) { answer_ = std::move(answer); }

  struct Seen {
    Seen(const Batch& batch)  // NOLINT: from a batch, by intent
        : config(batch.config),
          is_short(batch.is_short),
          is_measurement(batch.is_measurement) {}
    HeadConfig config;
    bool is_short;
    bool is_measurement;
  };
  const std::vector<Seen>& batches() const { return batches_; }

 private:
  FakeClock& clock_;
  const double launch_;
  const double per_byte_;
  const double per_flop_;
  const DeviceDescription description_ = {
      .name = "timed:0", .backend = "cuda", .processor_count = 100};
  absl::Status answer_;
  std::vector<Seen> batches_;
};

constexpr HeadConfig kConfig = {.data_type = DataType::kBFloat16,
                                .head_dim_qk = 128,
                                .head_dim_v = 128,
                                .query_head_count = 16,
                                .kv_head_count = 8};

struct Speed {
  double launch;
  double per_byte;
  double per_flop;
};

class CalibrationTest : public testing::TestWithParam<Speed> {
 protected:
  FakeClock clock_;
  TimedDevice device_{&clock_, GetParam().launch, GetParam().per_byte,
                      GetParam().per_flop};
};

TEST_P(CalibrationTest, PredictsShapesThatItHasNotMeasured) {
  const auto measured = MeasureDevice(device_, kConfig, clock_);
  ASSERT_TRUE(measured.ok()) << measured.status();
  CostModel model({device_.description()});
  const size_t cost_class = CostClassOf(kConfig);
  model.Calibrate(0, cost_class, *measured);
  const auto predict = [&](const WorkCost& cost) {
    return model.Launch(0, cost_class) + model.Added(0, cost_class, cost);
  };
  for (const Measurement& m : *measured) {
    EXPECT_NEAR(absl::FDivDuration(predict(m.cost), m.time), 1, 0.1);
  }
  for (const auto& [tokens, keys] :
       {std::pair<int64_t, int64_t>(1, 1000), {100, 100}, {1, 8192},
        {512, 1024}, {4096, 4096}}) {
    Sequence sequence;
    sequence.query_length = tokens;
    sequence.key_length = keys;
    const WorkCost cost = {AttentionFlops(kConfig, sequence),
                           (16. * tokens + 8. * keys) * 128 * 2 * 2};
    EXPECT_NEAR(absl::FDivDuration(predict(cost), device_.TimeOf(cost)), 1, 0.3)
        << tokens << " x " << keys;
  }
}

TEST_P(CalibrationTest, MeasuresTheConfigurationAndSaysSo) {
  ASSERT_TRUE(MeasureDevice(device_, kConfig, clock_).ok());
  EXPECT_THAT(device_.batches(),
              Each(testing::AllOf(
                  Field(&TimedDevice::Seen::config, kConfig),
                  Field(&TimedDevice::Seen::is_measurement, true))));
  EXPECT_GE(device_.batches().size(), 9u);
  EXPECT_LE(device_.batches().size(), 30u);
}

INSTANTIATE_TEST_SUITE_P(
    Speeds, CalibrationTest,
    testing::Values(Speed{20e-6, 1e-10, 1e-11},     // a slow CPU
                    Speed{5e-6, 1e-11, 1e-12},      // a large one
                    Speed{40e-6, 3e-11, 3e-15},     // a GPU
                    Speed{3e-3, 1e-9, 1e-13}));     // one far away

TEST(CalibrationErrorTest, PassesOnWhatTheDeviceSays) {
  FakeClock clock;
  TimedDevice device(&clock, 1e-3, 0, 0);
  device.FailWith(absl::ResourceExhaustedError("no memory"));
  EXPECT_EQ(MeasureDevice(device, kConfig, clock).status(),
            absl::ResourceExhaustedError("no memory"));
}

class SchedulerCalibrationTest : public testing::Test {
 protected:
  // Whether the first request counts as short, on a device that takes 1 ms.
  bool FirstIsShort(absl::Duration max_inline_time, bool calibrate) {
    FakeClock clock;
    TimedDevice device(&clock, 1e-3, 0, 0);
    Metrics metrics({});
    auto scheduler = Scheduler::Create({.max_inline_time = max_inline_time},
                                       {&device}, &metrics, &clock);
    EXPECT_TRUE(scheduler.ok());
    if (calibrate) {
      EXPECT_TRUE((*scheduler)->Calibrate(DefaultCalibrationConfigs()).ok());
    }
    Probe probe;
    auto work = probe.Attach(MakeWork({}));
    EXPECT_TRUE((*scheduler)->Enqueue(work).ok());
    EXPECT_FALSE(device.batches().back().is_measurement);
    return device.batches().back().is_short;
  }
};

TEST_F(SchedulerCalibrationTest, FirstPredictionsAreRight) {
  // The device takes 1 ms; a GPU is taken to need 50 us for a launch.
  EXPECT_TRUE(FirstIsShort(absl::Microseconds(200), /*calibrate=*/false));
  EXPECT_FALSE(FirstIsShort(absl::Microseconds(200), /*calibrate=*/true));
  EXPECT_FALSE(FirstIsShort(absl::Microseconds(800), /*calibrate=*/true));
  EXPECT_TRUE(FirstIsShort(absl::Microseconds(1200), /*calibrate=*/true));
}

TEST_F(SchedulerCalibrationTest, LearnsWhatCanBeMeasuredAndReportsTheRest) {
  FakeClock clock;
  TimedDevice device(&clock, 1e-3, 0, 0);
  device.FailWith(absl::ResourceExhaustedError("no memory"));
  Metrics metrics({});
  auto scheduler = Scheduler::Create({}, {&device}, &metrics, &clock);
  ASSERT_TRUE(scheduler.ok());
  EXPECT_EQ((*scheduler)->Calibrate(DefaultCalibrationConfigs()).code(),
            absl::StatusCode::kResourceExhausted);
  // It works all the same.
  device.FailWith(absl::OkStatus());
  Probe probe;
  auto work = probe.Attach(MakeWork({}));
  EXPECT_TRUE((*scheduler)->Enqueue(work).ok());
  EXPECT_EQ(probe.answers(), 1);
}

}  // namespace
}  // namespace attention
