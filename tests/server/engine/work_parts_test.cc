// Works that a GPU computes in parts, on a fake one whose streams are as early
// or as late as those of a real one may be.
#include "server/engine/cuda/work_parts.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/engine/direct_memory_fixture.h"
#include "tests/server/engine/fake_streams.h"

namespace attention::test {
namespace {

using ::testing::HasSubstr;
using Call = FakeCudaRuntime::Call;
using Kind = DirectMemory::Kind;

// Much to copy out, little to compute.
constexpr HeadConfig kConfig = {.head_dim_qk = 8,
                                .head_dim_v = 256,
                                .query_head_count = 2,
                                .kv_head_count = 1};
HeadConfig Masked(MaskKind mask) {
  HeadConfig config = kConfig;
  config.mask = mask;
  return config;
}
HeadConfig ManyHeads() {
  HeadConfig config = kConfig;
  config.query_head_count = 12;
  config.kv_head_count = 6;
  return config;
}

HeadConfig Float8(HeadConfig config) {
  config.data_type = DataType::kFloat8E4M3;
  return config;
}

// An answer of 8.4 MB: four parts.
const WorkSpec kRows = {.config = kConfig, .lengths = {{4100, 9}}};

const std::vector<std::pair<std::string, WorkSpec>> kCut = {
    {"rows", kRows},
    {"rows and log-sum-exp",
     {.config = kConfig, .lengths = {{4100, 9}}, .log_sum_exp = true}},
    {"causal",
     {.config = Masked(MaskKind::kCausalBottomRight),
      .lengths = {{4100, 4100}},
      .log_sum_exp = true,
      .window_left = 20}},
    {"causal, more keys",
     {.config = Masked(MaskKind::kCausalBottomRight),
      .lengths = {{4100, 4356}},
      .window_left = 20}},
    {"top left",
     {.config = Masked(MaskKind::kCausalTopLeft),
      .lengths = {{4100, 4100}},
      .window_left = 20}},
    {"top left, more keys",
     {.config = Masked(MaskKind::kCausalTopLeft),
      .lengths = {{4096, 4300}},
      .window_left = 20}},
    {"sequences",
     {.config = kConfig,
      .lengths = {{1500, 7}, {0, 3}, {100, 9}, {1400, 0}, {1300, 5}},
      .log_sum_exp = true}},
    {"sequences, top left",
     {.config = Masked(MaskKind::kCausalTopLeft),
      .lengths = {{3000, 3000}, {40, 50}, {60, 7}, {1100, 1100}},
      .window_left = 20}},
    {"many sequences",
     {.config = kConfig,
      .lengths = std::vector<std::pair<int64_t, int64_t>>(130, {33, 3})}},
    {"padding",
     {.config = kConfig,
      .lengths = {{1000, 7}, {600, 3}, {1400, 9}},
      .padded_query_length = 1500,
      .padded_key_length = 9,
      .log_sum_exp = true}},
    {"heads",
     {.config = ManyHeads(), .lengths = {{700, 7}}, .heads_first = true}},
    {"heads of sequences",
     {.config = ManyHeads(),
      .lengths = {{300, 70}, {400, 30}},
      .heads_first = true}},
    {"rows in 8 bits",
     {.config = Float8(kConfig), .lengths = {{8200, 9}}, .scales = true}},
    {"heads in 8 bits",
     {.config = Float8(ManyHeads()),
      .lengths = {{1400, 7}},
      .heads_first = true,
      .scales = true}},
};

WorkSpec With(WorkSpec spec, int64_t queries, int64_t keys) {
  spec.lengths = {{queries, keys}};
  return spec;
}

class WorkPartsTest : public DirectMemoryTest {
 protected:
  ~WorkPartsTest() override { SetStreamPace(StreamPace::kLate); }

  // Launches that the requests took.
  int Launches() {
    const int before = cuda().launches();
    RunAll();
    ExpectAllRight();
    requests_.clear();
    return cuda().launches() - before;
  }
};

TEST_F(WorkPartsTest, EveryLayoutAtEveryPace) {
  for (StreamPace pace :
       {StreamPace::kLate, StreamPace::kEarly, StreamPace::kOthersFirst}) {
    SetStreamPace(pace);
    for (const auto& [name, base] : kCut) {
      SCOPED_TRACE(testing::Message()
                   << name << ", pace " << static_cast<int>(pace));
      WorkSpec spec = base;
      spec.fragment_bytes = 70'000;
      spec.misalignment = 1;
      TestRequest& pinned = Add(spec);
      PlaceInputs(pinned, Kind::kPinned);
      PlaceResults(pinned, Kind::kPinned);
      EXPECT_GE(Launches(), 3) << "from pinned memory";
      if (pace != StreamPace::kEarly) continue;
      Add(spec);
      EXPECT_GE(Launches(), 3) << "from fragments";
      PlaceInputs(Add(spec), Kind::kDevice);
      EXPECT_GE(Launches(), 3) << "from the device";
      Place(Add(spec).work().query, Kind::kPinned);
      EXPECT_GE(Launches(), 3) << "from several";
    }
  }
}

TEST_F(WorkPartsTest, EveryByteIsCopiedOnce) {
  TestRequest& request = Add(kRows);
  const size_t bytes =
      request.work().input_bytes() + request.work().result_bytes();
  PlaceInputs(request, Kind::kPinned);
  PlaceResults(request, Kind::kPinned);
  RunAll();
  ExpectAllRight();
  EXPECT_EQ(engine_->Metric("attention_copied_bytes_total"), bytes);
  // Queries and results in parts; keys and values, which are small, together.
  EXPECT_EQ(cuda().launches(), 4);
  EXPECT_EQ(cuda().calls(Call::kCopyToDevice), 4 + 1);
  EXPECT_EQ(cuda().calls(Call::kCopyToHost), 4);
}

TEST_F(WorkPartsTest, WholeWhereNothingIsGainedOrBitsWouldChange) {
  const WorkSpec bottom_right = {.config = Masked(MaskKind::kCausalBottomRight),
                                 .window_left = 20};
  const WorkSpec top_left = {.config = Masked(MaskKind::kCausalTopLeft),
                             .window_left = 20};
  WorkSpec window = kRows;
  window.window_right = 3;
  HeadConfig three_step = kConfig;
  three_step.algorithm = Algorithm::kThreeStep;
  for (const WorkSpec& spec :
       std::vector<WorkSpec>{With(kRows, 900, 9),
                             With(bottom_right, 4100, 4101),
                             With(bottom_right, 4100, 3972),
                             With(top_left, 4100, 4300),
                             With(top_left, 4096, 3000),
                             window,
                             {.config = three_step, .lengths = {{4100, 9}}}}) {
    Add(spec);
    EXPECT_EQ(Launches(), 1)
        << spec.lengths[0].first << ", " << spec.lengths[0].second;
  }
  PlaceResults(Add(kRows), Kind::kDevice);
  EXPECT_EQ(Launches(), 1);
  // The copies of works in a batch of several overlap those of other batches.
  Add(kRows);
  Add(kRows);
  EXPECT_EQ(Launches(), 1);
}

TEST_F(WorkPartsTest, WholeBesideAnotherBatch) {
  TestRequest& first = Add(kRows);
  PlaceInputs(first, Kind::kPinned);
  absl::Notification go_on;
  sources_[0]->wait = &go_on;
  absl::Notification free;
  engine_->device()->Run(MakeBatch(requests_), [&] { free.Notify(); });
  sources_[0]->reached.WaitForNotification();

  std::vector<std::unique_ptr<TestRequest>> others;
  others.push_back(std::make_unique<TestRequest>(kRows));
  RunAndWait(*engine_->device(), MakeBatch(others));
  EXPECT_TRUE(others[0]->AnsweredRight());
  EXPECT_EQ(cuda().launches(), 1);
  go_on.Notify();
  free.WaitForNotification();
  ExpectAllRight();
  EXPECT_EQ(cuda().launches(), 5);
}

TEST_F(WorkPartsTest, AnErrorAnywhereFailsTheWorkAndNothingElse) {
  for (Call call : {Call::kCopyToDevice, Call::kCopyToHost, Call::kLaunch,
                    Call::kRecordEvent, Call::kWaitEvent, Call::kSynchronize,
                    Call::kElapsedTime, Call::kFillDevice}) {
    for (int n = 1; n < 30; ++n) {
      SCOPED_TRACE(testing::Message()
                   << "call " << static_cast<int>(call) << ", " << n);
      const int before = cuda().calls(call);
      cuda().FailCall(call, n, /*sticky=*/false);
      WorkSpec spec = kCut[9].second;
      ASSERT_GT(spec.padded_query_length, 0);
      TestRequest& request = Add(spec);
      RunAll();
      if (cuda().calls(call) < before + n) {  // not called so often
        cuda().FailCall(call, 1 << 30, false);
        EXPECT_TRUE(request.AnsweredRight());
        EXPECT_GT(n, 1);
        requests_.clear();
        break;
      }
      EXPECT_EQ(request.Wait().status().code(), absl::StatusCode::kInternal);
      EXPECT_TRUE(request.payload_released());
      requests_.clear();
      EXPECT_EQ(engine_->host_pool().usage().in_use_bytes, 0u);
      EXPECT_EQ(engine_->device_pool()->usage().in_use_bytes, 0u);
    }
  }
  EXPECT_TRUE(engine_->device()->health().ok());
}

TEST_F(WorkPartsTest, ADeviceThatFailsInTheMiddle) {
  cuda().FailCall(Call::kLaunch, 2, /*sticky=*/true);
  TestRequest& request = Add(kRows);
  RunAll();
  EXPECT_EQ(request.Wait().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(engine_->device()->health().ok());
}

TEST_F(WorkPartsTest, ASourceThatFailsInTheMiddle) {
  const absl::Status gone = absl::FailedPreconditionError("it has shrunk");
  for (int good = 0; good < 4; ++good) {
    TestRequest& request = Add(kRows);
    PlaceInputs(request, Kind::kPinned);
    DirectSource& query = *sources_[sources_.size() - 3];
    query.good_checks = good;
    query.check = gone;
    RunAll();
    EXPECT_EQ(request.Wait().status().code(), gone.code());
    EXPECT_GT(query.checks(), good);
    requests_.clear();
  }
  // One that has to be read.
  WorkSpec spec = kRows;
  spec.source_bytes = 100'000;
  TestRequest& request = Add(spec);
  RunAll();
  EXPECT_EQ(request.Wait().status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(request.Wait().status().message()),
              HasSubstr("ends early"));
  requests_.clear();
  Add(kRows);
  EXPECT_EQ(Launches(), 4);
}

}  // namespace
}  // namespace attention::test
