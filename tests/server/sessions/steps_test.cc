// Appending and attending: positions, ranges, batches.
#include <string>

#include "tests/server/sessions/sessions_fixture.h"

namespace attention {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class StepsTest : public SessionsTest {
 protected:
  void SetUp() override { MakeRegistry(); }
};

TEST_F(StepsTest, AppendsFillPages) {
  const std::string name = Open();
  KvView view;
  ASSERT_EQ(Run(StepOf(name, 3), view), absl::OkStatus());
  EXPECT_EQ(view.key_length, 3);
  EXPECT_EQ(view.key_begin, 0);
  EXPECT_EQ(view.key_end, 3);
  EXPECT_THAT(view.pages, SizeIs(1));
  const KvView first = view;
  ASSERT_EQ(Run(StepOf(name, 6, 6), view), absl::OkStatus());
  EXPECT_EQ(view.key_length, 9);
  ASSERT_THAT(view.pages, SizeIs(3));
  EXPECT_EQ(view.pages[0], first.pages[0]);
  EXPECT_THAT(view.copies, IsEmpty());
  EXPECT_EQ(Length(name), 9);
  EXPECT_EQ(Pages("used"), 3);
}

TEST_F(StepsTest, PagesAreAligned) {
  SessionConfig config = MakeConfig();
  config.paged.page_tokens = 1;
  config.paged.heads.head_dim_v = 4;  // 48 bytes
  const std::string name = Open(config);
  KvView view;
  ASSERT_EQ(Run(StepOf(name, 5), view), absl::OkStatus());
  for (void* page : view.pages) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(page) % 256, 0u);
  }
}

TEST_F(StepsTest, LayersHaveLengthsOfTheirOwn) {
  const std::string name = Open(MakeConfig(3));
  ASSERT_EQ(Append(name, 5, 0), absl::OkStatus());
  ASSERT_EQ(Append(name, 2, 2), absl::OkStatus());
  EXPECT_THAT(Info(name).layer_lengths, ElementsAre(5, 0, 2));
  EXPECT_NE(Look(name, 0).pages[0], Look(name, 2).pages[0]);
  EXPECT_EQ(registry_->Use(kOwner, name, 2)->layer_length, 2);
}

// A retry finds its position taken, whatever it would add to it.
TEST_F(StepsTest, APositionIsTakenOnce) {
  const std::string name = Open();
  KvStep step = StepOf(name, 5);
  step.expected_position = 0;
  EXPECT_EQ(Run(step), absl::OkStatus());
  for (int64_t length : {1, 5, 9}) {
    step.append_length = length;
    const absl::Status status = Run(step);
    EXPECT_THAT(status, IsTaken());
    EXPECT_THAT(std::string(status.message()), HasSubstr("has 5 tokens"));
    EXPECT_EQ(FactOf(status, error_fact::kTokenCount), "5");
  }
  step.expected_position = 6;
  const absl::Status gap = Run(step);
  EXPECT_THAT(gap, IsGap());
  EXPECT_EQ(FactOf(gap, error_fact::kTokenCount), "5");
  EXPECT_EQ(Length(name), 5);
  step.expected_position = 5;
  EXPECT_EQ(Run(step), absl::OkStatus());
  EXPECT_EQ(Length(name), 14);
}

TEST_F(StepsTest, StepsOfABatchFollowEachOther) {
  const std::string name = Open();
  const uint64_t number = BeginBatch();
  KvView first, second;
  KvStep step = StepOf(name, 1, 1);
  step.expected_position = 0;
  ASSERT_EQ(Begin(number, step, first), absl::OkStatus());
  EXPECT_THAT(Begin(number, step, second), IsTaken());
  step.expected_position = 1;
  ASSERT_EQ(Begin(number, step, second), absl::OkStatus());
  AllBegun(number);
  EndBatch(number);
  EXPECT_EQ(first.key_length, 1);
  EXPECT_EQ(second.key_length, 2);
  EXPECT_EQ(first.pages, second.pages);
}

TEST_F(StepsTest, RangesOfKeys) {
  const std::string name = Open();
  ASSERT_EQ(Append(name, 6), absl::OkStatus());
  KvStep step = StepOf(name, 2, 1);
  step.key_range = KeyRange{3, 8};
  KvView view;
  ASSERT_EQ(Run(step, view), absl::OkStatus());  // to the end of the append
  EXPECT_EQ(view.key_begin, 3);
  EXPECT_EQ(view.key_end, 8);
  step.append_length = 0;
  step.key_range = KeyRange{8, 8};
  EXPECT_EQ(Run(step), absl::OkStatus());
  step.key_range = KeyRange{0, 9};
  EXPECT_THAT(Run(step), IsGap());
  for (const KeyRange& range : {KeyRange{5, 4}, KeyRange{-1, 4}}) {
    step.key_range = range;
    EXPECT_THAT(Run(step), IsInvalid());
  }
  // What is wrong with the range leaves the layer as it was.
  step.append_length = 2;
  step.key_range = KeyRange{0, 11};
  EXPECT_THAT(Run(step), IsGap());
  EXPECT_EQ(Length(name), 8);
}

TEST_F(StepsTest, RefusesLengthsOutOfRange) {
  const std::string name = Open();
  KvStep step = StepOf(name, -1);
  EXPECT_THAT(Run(step), IsInvalid());
  step = StepOf(name, 0, -1);
  EXPECT_THAT(Run(step), IsInvalid());
  step = StepOf(name, kMaxLayerTokens + 1);
  EXPECT_THAT(Run(step), IsTooLarge());
  EXPECT_EQ(Length(name), 0);
}

TEST_F(StepsTest, ScalesComeFromTheSession) {
  SessionConfig config = MakeConfig();
  config.paged.kv_data_type = KvDataType::kFloat8E4M3;
  config.key_scales = {0.5f};
  config.value_scales = {2.0f};
  const KvView view = Look(Open(config));
  EXPECT_EQ(view.key_scales[0], 0.5f);
  EXPECT_EQ(view.value_scales[0], 2.0f);
  EXPECT_EQ(Look(Open()).key_scales, nullptr);
}

TEST_F(StepsTest, AFullCacheRefusesAndAnotherStepFits) {
  MakeRegistry(/*page_count=*/32);
  const std::string first = Open(), second = Open();
  ASSERT_EQ(Append(first, 30 * 4), absl::OkStatus());
  EXPECT_THAT(Append(second, 9), IsFull());
  EXPECT_EQ(Length(second), 0);
  EXPECT_EQ(Append(second, 8), absl::OkStatus());
  EXPECT_THAT(Append(second, 1), IsFull());
  // Larger than all there is: no use in waiting.
  EXPECT_THAT(Append(second, 33 * 4), IsTooLarge());
  ASSERT_EQ(registry_->Delete(kOwner, first), absl::OkStatus());
  EXPECT_EQ(Append(second, 1), absl::OkStatus());
}

// Slabs are small where memory is.
TEST_F(StepsTest, ASmallBudgetIsNotLostToSlabs) {
  for (int64_t page_count : {16, 17, 31, 63, 100}) {
    MakeRegistry(page_count);
    const std::string name = Open();
    EXPECT_EQ(Append(name, page_count * 3 / 4 * 4), absl::OkStatus())
        << page_count;
  }
}

TEST_F(StepsTest, ADeviceWithoutMemoryIsFull) {
  devices_.clear();
  registry_.reset();
  pools_[0] = std::make_unique<MemoryPool>(
      MemoryPool::Options{.name = "device", .budget_bytes = 4096},
      std::make_unique<AddressAllocator>());
  devices_.push_back(std::make_unique<PuppetDevice>());
  registry_ = *SessionRegistry::Create(
      {.slab_bytes = 4096},
      {{devices_[0].get(), pools_[0].get(), size_t{1} << 30}}, &clock_,
      &metrics_);
  const std::string name = Open();
  EXPECT_EQ(Append(name, 64), absl::OkStatus());
  EXPECT_THAT(Append(name, 1), IsFull());
}

// Pages that become free while a batch begins may be read by its steps, so they
// are not given to steps of the same batch.
TEST_F(StepsTest, PagesAreNotReusedWithinABatch) {
  MakeRegistry(/*page_count=*/16);
  const std::string old = Open(), fresh = Open();
  ASSERT_EQ(Append(old, 16 * 4), absl::OkStatus());
  const uint64_t number = BeginBatch();
  KvView read, view;
  ASSERT_EQ(Begin(number, StepOf(old, 0, 1), read), absl::OkStatus());
  const KvStep step = StepOf(fresh, 1);
  ASSERT_EQ(registry_->Delete(kOwner, old), absl::OkStatus());
  EXPECT_THAT(Begin(number, step, view), IsFull());
  AllBegun(number);
  // Later batches are computed later.
  const uint64_t next = BeginBatch();
  EXPECT_EQ(Begin(next, step, view), absl::OkStatus());
  AllBegun(next);
  EndBatch(number);
  EndBatch(next);
  EXPECT_THAT(read.pages, testing::Contains(view.pages[0]));
}

TEST_F(StepsTest, MemoryGoesBackWhenNoBatchRuns) {
  const std::string name = Open();
  ASSERT_EQ(Append(name, 4 * kPagesPerSlab + 1), absl::OkStatus());
  EXPECT_EQ(PoolBytes(), 2u * kPagesPerSlab * kSmallPageBytes);
  const uint64_t number = BeginBatch();
  AllBegun(number);
  ASSERT_EQ(registry_->Delete(kOwner, name), absl::OkStatus());
  EXPECT_EQ(PoolBytes(), 2u * kPagesPerSlab * kSmallPageBytes);
  EndBatch(number);
  EXPECT_EQ(PoolBytes(), 0u);
}

// Though no batch ends for long, slabs pass from one page size to another.
TEST_F(StepsTest, MemoryPassesToPagesOfAnotherSize) {
  MakeRegistry(/*page_count=*/16);
  const std::string small = Open();
  SessionConfig config = MakeConfig();
  config.paged.page_tokens = 8;
  const std::string large = Open(config);
  ASSERT_EQ(Append(small, 16 * 4), absl::OkStatus());
  const uint64_t number = BeginBatch();
  AllBegun(number);
  const uint64_t next = BeginBatch();
  KvView view;
  EXPECT_THAT(Begin(next, StepOf(large, 64), view), IsFull());
  AllBegun(next);
  ASSERT_EQ(registry_->Delete(kOwner, small), absl::OkStatus());
  const uint64_t last = BeginBatch();
  EXPECT_EQ(Begin(last, StepOf(large, 64), view), absl::OkStatus());
  AllBegun(last);
  EXPECT_THAT(view.pages, SizeIs(8));
  for (uint64_t n : {number, next, last}) EndBatch(n);
  EXPECT_EQ(Length(large), 64);
}

TEST_F(StepsTest, AFailedBatchLosesWhatItAppendedTo) {
  const std::string appended = Open(MakeConfig(2)), read = Open();
  ASSERT_EQ(Append(appended, 5, 1), absl::OkStatus());
  ASSERT_EQ(Append(read, 5), absl::OkStatus());
  const std::string before = Fork(appended);
  const uint64_t number = BeginBatch();
  KvView view;
  ASSERT_EQ(Begin(number, StepOf(appended, 1, 1), view), absl::OkStatus());
  ASSERT_EQ(Begin(number, StepOf(read, 0, 1), view), absl::OkStatus());
  AllBegun(number);
  const std::string after = Fork(appended);
  EndBatch(number, /*ok=*/false);
  for (const std::string& name : {appended, after}) {
    EXPECT_THAT(Append(name, 1), IsLost());
    EXPECT_THAT(Append(name, 1, 1), IsLost());
    EXPECT_THAT(Cut(name, 0), IsLost());
    EXPECT_THAT(registry_->Fork(kOwner, name, {}).status(), IsLost());
    EXPECT_TRUE(Info(name).is_lost);
    EXPECT_EQ(registry_->Delete(kOwner, name), absl::OkStatus());
  }
  for (const std::string& name : {before, read}) {
    EXPECT_EQ(Append(name, 1), absl::OkStatus());
    EXPECT_FALSE(Info(name).is_lost);
  }
  EXPECT_EQ(
      reader_.Value("attention_session_events_total", {{"event", "lost"}}), 2);
}

// The next batch must not compute on what a launch that failed did not write.
TEST_F(StepsTest, AFailureBeforeAllBegunIsKnownToTheNextBatch) {
  const std::string name = Open();
  const uint64_t number = BeginBatch();
  KvView view;
  ASSERT_EQ(Begin(number, StepOf(name, 1, 1), view), absl::OkStatus());
  EndBatch(number, /*ok=*/false);
  EXPECT_THAT(Append(name, 1), IsLost());
  EXPECT_EQ(Pages("used"), 0);
}

TEST_F(StepsTest, ARefusedStepLosesNothing) {
  const std::string name = Open();
  const uint64_t number = BeginBatch();
  KvView view;
  KvStep step = StepOf(name, 1, 1);
  step.expected_position = 7;
  EXPECT_THAT(Begin(number, step, view), IsGap());
  AllBegun(number);
  EndBatch(number, /*ok=*/false);
  EXPECT_EQ(Append(name, 1), absl::OkStatus());
}

TEST_F(StepsTest, DeletingEndsStepsThatHaveNotBegun) {
  const std::string name = Open();
  ASSERT_EQ(Append(name, 3), absl::OkStatus());
  const KvStep step = StepOf(name, 1, 1);
  ASSERT_EQ(registry_->Delete(kOwner, name), absl::OkStatus());
  EXPECT_THAT(Run(step), IsNotFound());
  EXPECT_EQ(Pages("used"), 0);
}

// A step that finds no page has found nothing.
TEST_F(StepsTest, RefusedStepsAreNoHits) {
  MakeRegistry(/*page_count=*/1);
  const std::string name = Open();
  ASSERT_EQ(Append(name, 4), absl::OkStatus());
  ASSERT_THAT(Run(StepOf(name, 1, 1)), IsFull());
  const auto found = reader_.Histogram("attention_session_found_tokens");
  EXPECT_EQ(found.has_value() ? found->sample_count : 0u, 0u);
  ASSERT_EQ(Run(StepOf(name, 0, 1)), absl::OkStatus());
  EXPECT_EQ(reader_.Histogram("attention_session_found_tokens")->sample_count,
            1u);
}

TEST_F(StepsTest, CountsTokensAndHits) {
  const std::string name = Open();
  ASSERT_EQ(Append(name, 3), absl::OkStatus());
  ASSERT_EQ(Run(StepOf(name, 2, 2)), absl::OkStatus());
  EXPECT_EQ(reader_.Value("attention_session_appended_tokens_total"), 5);
  const auto found = reader_.Histogram("attention_session_found_tokens");
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->sample_count, 1u);
  EXPECT_EQ(found->sample_sum, 3);
  EXPECT_EQ(reader_.Value("attention_session_resident_tokens",
                          {{"device", "puppet:0"}}),
            5);
  KvStep gap = StepOf(name, 1);
  gap.expected_position = 9;
  ASSERT_THAT(Run(gap), IsGap());
  EXPECT_EQ(reader_.Value("attention_session_refusals_total",
                          {{"reason", "POSITION_GAP"}}),
            1);
}

}  // namespace
}  // namespace attention
