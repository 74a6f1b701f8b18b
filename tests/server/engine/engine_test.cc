// What every device promises, on every backend.
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "server/engine/error_reason.h"
#include "tests/server/engine/engine_fixture.h"

namespace attention::test {
namespace {

class DeviceTest : public EngineTest {};
INSTANTIATE_FOR_ENGINES(DeviceTest);

TEST_P(DeviceTest, OneRequest) {
  ExpectRight({{.config = kSmallConfig, .lengths = {{33, 65}}}});
}

TEST_P(DeviceTest, RaggedWorksShareABatch) {
  ExpectRight({{.config = kGroupedConfig,
                .lengths = {{1, 77}, {64, 64}, {5, 3}},
                .log_sum_exp = true},
               {.config = kGroupedConfig, .lengths = {{128, 130}}},
               {.config = kGroupedConfig,
                .lengths = {{7, 7}, {2, 300}},
                .log_sum_exp = true,
                .window_left = 20}});
}

TEST_P(DeviceTest, MeasurementsAreNotCounted) {
  for (const bool is_measurement : {true, false}) {
    std::vector<std::unique_ptr<TestRequest>> requests;
    requests.push_back(std::make_unique<TestRequest>(
        WorkSpec{.config = kSmallConfig, .lengths = {{3, 5}}}));
    auto batch = MakeBatch(requests);
    batch->is_measurement = is_measurement;
    RunAndWait(device(), std::move(batch));
    EXPECT_TRUE(requests[0]->AnsweredRight());
    const double count = is_measurement ? 0 : 1;
    EXPECT_EQ(engine().Metric("attention_batches_total"), count);
    EXPECT_EQ(engine().SampleCount("attention_batch_requests"), count);
    EXPECT_EQ(engine().Metric("attention_batches_in_flight"), 0);
  }
}

TEST_P(DeviceTest, EveryTypeAndMask) {
  for (DataType type :
       {DataType::kFloat32, DataType::kFloat16, DataType::kBFloat16}) {
    for (MaskKind mask : {MaskKind::kNone, MaskKind::kCausalTopLeft,
                          MaskKind::kCausalBottomRight}) {
      HeadConfig config = kGroupedConfig;
      config.data_type = type;
      config.mask = mask;
      ExpectRight({{.config = config,
                    .lengths = {{40, 19}, {17, 90}},
                    .log_sum_exp = true,
                    .scale = 0.3}});
    }
  }
}

TEST_P(DeviceTest, WeightsAreReturned) {
  HeadConfig config = kGroupedConfig;
  config.algorithm = Algorithm::kThreeStep;
  ExpectRight({{.config = config,
                .lengths = {{20, 31}, {3, 3}},
                .log_sum_exp = true,
                .weights = true},
               {.config = config, .lengths = {{9, 50}}}});
}

TEST_P(DeviceTest, PaddingIsCleared) {
  const WorkSpec padded = {.config = kGroupedConfig,
                           .lengths = {{5, 9}, {12, 1}, {0, 7}, {3, 0}},
                           .padded_query_length = 12,
                           .padded_key_length = 9,
                           .log_sum_exp = true};
  const WorkSpec dense = {
      .config = kGroupedConfig, .lengths = {{48, 48}}, .log_sum_exp = true};
  // The dense answers leave values behind in the memory that is used again.
  for (int i = 0; i < 3; ++i) {
    ExpectRight({dense, dense});
    ExpectRight({padded, dense, padded});
  }
}

TEST_P(DeviceTest, FragmentsMayBeCutAndLieAnywhere) {
  for (DataType type : {DataType::kBFloat16, DataType::kFloat8E4M3}) {
    HeadConfig config = kGroupedConfig;
    config.data_type = type;
    for (size_t fragment_bytes : {0, 1, 7, 1000, 4096}) {
      for (size_t misalignment : {0, 1, 2, 3}) {
        ExpectRight({{.config = config,
                      .lengths = {{10, 20}, {1, 5}},
                      .fragment_bytes = fragment_bytes,
                      .misalignment = misalignment},
                     {.config = config, .lengths = {{3, 3}}}});
      }
    }
  }
}

TEST_P(DeviceTest, ScalesAreThoseOfEachWork) {
  HeadConfig config = kGroupedConfig;
  config.data_type = DataType::kFloat8E4M3;
  ExpectRight({{.config = config, .lengths = {{10, 20}}, .scales = true},
               {.config = config, .lengths = {{7, 9}}},
               {.config = config,
                .lengths = {{5, 0}, {1, 30}, {3, 5}},
                .padded_query_length = 6,
                .padded_key_length = 30,
                .log_sum_exp = true,
                .scales = true}});
}

TEST_P(DeviceTest, LargePayloadsInManyFragments) {
  // Beyond every chunk in which a device may copy.
  WorkSpec spec = LargeInput(size_t{11} << 20);
  ExpectRight({spec});
  spec.fragment_bytes = (size_t{4} << 20) + 4;
  ExpectRight({spec, LargeInput(4096)});
  // Beyond what one thread gathers alone.
  ExpectRight({LargeInput(4096), LargeInput(size_t{18} << 20), spec});
}

TEST_P(DeviceTest, SourcesMixWithFragments) {
  WorkSpec large = LargeInput(9 << 20);  // several chunks of a copy
  large.source_bytes = 9 << 20;
  WorkSpec small = large;
  small.lengths = {{5, 7}};
  WorkSpec fragments = small;
  fragments.source_bytes.reset();
  ExpectRight({large, fragments, small});
}

TEST_P(DeviceTest, FailingSourceFailsAlone) {
  WorkSpec good = LargeInput(1 << 16);
  WorkSpec failing = LargeInput(9 << 20);
  failing.source_bytes = 4300000;  // within the second chunk
  Requests requests = MakeRequests({good, failing, good});
  RunAndWait(device(), MakeBatch(requests));
  EXPECT_TRUE(requests[0]->AnsweredRight());
  EXPECT_TRUE(absl::IsFailedPrecondition(requests[1]->Wait().status()))
      << requests[1]->Wait().status();
  EXPECT_TRUE(requests[2]->AnsweredRight());
  EXPECT_EQ(engine().Metric("attention_batch_failures_total"), 0);
}

TEST_P(DeviceTest, EmptyWorks) {
  HeadConfig no_heads = kSmallConfig;
  no_heads.query_head_count = no_heads.kv_head_count = 0;
  ExpectRight({{.config = no_heads, .lengths = {{4, 4}}, .log_sum_exp = true}});
  ExpectRight({{.config = kSmallConfig, .lengths = {}, .log_sum_exp = true}});
  ExpectRight(
      {{.config = kSmallConfig, .lengths = {}},
       {.config = kSmallConfig, .lengths = {{8, 8}}},
       {.config = kSmallConfig, .lengths = {{0, 8}}, .log_sum_exp = true},
       {.config = kSmallConfig, .lengths = {{8, 0}}, .log_sum_exp = true},
       {.config = kSmallConfig, .lengths = {{0, 0}, {2, 3}, {0, 0}}}});
}

TEST_P(DeviceTest, BigAndSmallBatchesDoNotMixTheirData) {
  for (int64_t length : {300, 3, 257, 1, 300}) {
    ExpectRight({{.config = kSmallConfig,
                  .lengths = {{length, length}},
                  .log_sum_exp = true,
                  .fragment_bytes = 999},
                 {.config = kSmallConfig, .lengths = {{2, length}}}});
  }
}

TEST_P(DeviceTest, AnswersDoNotDependOnTheBatch) {
  const WorkSpec spec = {.config = kGroupedConfig,
                         .lengths = {{30, 90}, {1, 40}},
                         .log_sum_exp = true};
  Requests alone = MakeRequests({spec});
  RunAndWait(device(), MakeBatch(alone));
  Requests together = MakeRequests(
      {spec, {.config = kGroupedConfig, .lengths = {{200, 200}}}, spec});
  RunAndWait(device(), MakeBatch(together));
  ASSERT_TRUE(alone[0]->AnsweredRight());
  EXPECT_EQ(alone[0]->ResultBits(), together[0]->ResultBits());
}

TEST_P(DeviceTest, AnswerTellsHowItCameAbout) {
  Requests requests =
      MakeRequests({{.config = kSmallConfig,
                     .lengths = {{8, 8}, {8, 8}},
                     .fragment_bytes = 100},
                    {.config = kSmallConfig, .lengths = {{8, 8}}}});
  const absl::Time now = absl::FromUnixSeconds(1000);
  requests[0]->work().arrival_time = now - absl::Milliseconds(30);
  requests[1]->work().arrival_time = now - absl::Milliseconds(20);
  std::unique_ptr<Batch> batch = MakeBatch(requests);
  batch->start_time = now;
  RunAndWait(device(), std::move(batch));
  for (const auto& request : requests) {
    ASSERT_TRUE(request->Wait().ok());
    EXPECT_EQ(request->Wait()->batch_request_count, 2);
    EXPECT_EQ(request->Wait()->batch_sequence_count, 3);
    EXPECT_EQ(request->Wait()->device_name, device().description().name);
    EXPECT_GT(request->Wait()->compute_duration, absl::ZeroDuration());
    EXPECT_GT(request->Wait()->copy_in_duration, absl::ZeroDuration());
  }
  EXPECT_EQ(requests[0]->Wait()->queue_duration, absl::Milliseconds(30));
  EXPECT_EQ(requests[1]->Wait()->queue_duration, absl::Milliseconds(20));
}

TEST_P(DeviceTest, InvalidWorkFailsAlone) {
  WorkSpec invalid = {.config = kSmallConfig,
                      .lengths = {{4, 4}},
                      .scale = std::numeric_limits<double>::quiet_NaN()};
  Requests requests =
      MakeRequests({invalid, {.config = kSmallConfig, .lengths = {{4, 4}}}});
  RunAndWait(device(), MakeBatch(requests));
  EXPECT_EQ(requests[0]->Wait().status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(requests[0]->Wait().status()),
            error_reason::kInvalidRequest);
  EXPECT_TRUE(requests[1]->AnsweredRight());
}

}  // namespace
}  // namespace attention::test
