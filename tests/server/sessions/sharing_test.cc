// Forks, truncation and reservations.
#include <string>

#include "tests/server/sessions/sessions_fixture.h"

namespace attention {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class SharingTest : public SessionsTest {
 protected:
  void SetUp() override { MakeRegistry(/*page_count=*/16); }
};

TEST_F(SharingTest, AForkHasThePagesOfItsOrigin) {
  const std::string origin = Open();
  ASSERT_EQ(Append(origin, 10), absl::OkStatus());
  const std::string fork = Fork(origin);
  EXPECT_NE(fork, origin);
  EXPECT_EQ(Length(fork), 10);
  EXPECT_EQ(Look(fork).pages, Look(origin).pages);
  EXPECT_EQ(Pages("used"), 3);
  EXPECT_EQ(Pages("shared"), 3);
  EXPECT_EQ(Info(fork).resident_bytes, 3 * kSmallPageBytes);
  EXPECT_EQ(Info(fork).shared_bytes, 3 * kSmallPageBytes);
  EXPECT_EQ(Info(fork).config.paged, SmallPages());
}

TEST_F(SharingTest, WhoAppendsFirstCopiesThePage) {
  const std::string origin = Open();
  ASSERT_EQ(Append(origin, 6), absl::OkStatus());
  const std::string fork = Fork(origin);
  const KvView old = Look(origin);
  KvView view;
  ASSERT_EQ(Run(StepOf(origin, 1), view), absl::OkStatus());
  ASSERT_THAT(view.copies, SizeIs(1));
  EXPECT_EQ(view.copies[0].from, old.pages[1]);
  EXPECT_EQ(view.copies[0].to, view.pages[1]);
  EXPECT_NE(view.pages[1], old.pages[1]);
  EXPECT_EQ(view.pages[0], old.pages[0]);
  // Now each has its own.
  ASSERT_EQ(Run(StepOf(fork, 1), view), absl::OkStatus());
  EXPECT_THAT(view.copies, IsEmpty());
  EXPECT_EQ(view.pages[1], old.pages[1]);
  ASSERT_EQ(Run(StepOf(origin, 1), view), absl::OkStatus());
  EXPECT_THAT(view.copies, IsEmpty());
  EXPECT_EQ(reader_.Value("attention_session_page_copies_total"), 1);
}

// The launch that the steps of a batch become reads what the first one was
// shown, whatever became of its session since.
TEST_F(SharingTest, APageStaysSharedWhileABatchBegins) {
  const std::string origin = Open();
  ASSERT_EQ(Append(origin, 8), absl::OkStatus());
  const std::string fork = Fork(origin), other = Fork(origin);
  ASSERT_EQ(Cut(origin, 6), absl::OkStatus());
  ASSERT_EQ(Cut(other, 6), absl::OkStatus());

  const uint64_t number = BeginBatch();
  KvView seen, copied, view;
  ASSERT_EQ(Begin(number, StepOf(fork, 0, 1), seen), absl::OkStatus());
  ASSERT_EQ(registry_->Delete(kOwner, fork), absl::OkStatus());
  ASSERT_EQ(Begin(number, StepOf(other, 1), copied), absl::OkStatus());
  ASSERT_EQ(Begin(number, StepOf(origin, 1), view), absl::OkStatus());
  EXPECT_NE(copied.pages[1], seen.pages[1]);
  EXPECT_NE(view.pages[1], seen.pages[1]);
  EXPECT_NE(view.pages[1], copied.pages[1]);
  AllBegun(number);
  EndBatch(number);
  EXPECT_EQ(Pages("used"), 3);
}

TEST_F(SharingTest, AFullPageIsNeverCopied) {
  const std::string origin = Open();
  ASSERT_EQ(Append(origin, 8), absl::OkStatus());
  const std::string fork = Fork(origin);
  KvView view;
  ASSERT_EQ(Run(StepOf(fork, 1), view), absl::OkStatus());
  EXPECT_THAT(view.copies, IsEmpty());
  EXPECT_EQ(Pages("used"), 3);
  EXPECT_EQ(Pages("shared"), 2);
}

TEST_F(SharingTest, ForksAtAnyPosition) {
  const std::string origin = Open();
  ASSERT_EQ(Append(origin, 10), absl::OkStatus());
  for (int64_t position = 0; position <= 10; ++position) {
    const std::string fork = Fork(origin, {.position = position});
    EXPECT_EQ(Length(fork), position);
    EXPECT_EQ(Look(fork).pages.size(), static_cast<size_t>((position + 3) / 4));
    KvView view;
    ASSERT_EQ(Run(StepOf(fork, 1), view), absl::OkStatus());
    EXPECT_EQ(view.copies.size(), position % 4 == 0 ? 0u : 1u);
    ASSERT_EQ(registry_->Delete(kOwner, fork), absl::OkStatus());
  }
  EXPECT_THAT(registry_->Fork(kOwner, origin, {.position = 11}).status(),
              IsGap());
  EXPECT_THAT(registry_->Fork(kOwner, origin, {.position = -1}).status(),
              IsInvalid());
  EXPECT_EQ(Pages("shared"), 0);
}

TEST_F(SharingTest, EveryLayerMustReachThePosition) {
  const std::string origin = Open(MakeConfig(2));
  ASSERT_EQ(Append(origin, 5, 0), absl::OkStatus());
  ASSERT_EQ(Append(origin, 4, 1), absl::OkStatus());
  EXPECT_THAT(registry_->Fork(kOwner, origin, {.position = 5}).status(),
              IsGap());
  EXPECT_THAT(Info(Fork(origin, {.position = 4})).layer_lengths,
              ElementsAre(4, 4));
  EXPECT_THAT(Info(Fork(origin)).layer_lengths, ElementsAre(5, 4));
  EXPECT_EQ(
      reader_.Value("attention_session_events_total", {{"event", "forked"}}),
      2);
}

TEST_F(SharingTest, ForksOutliveTheirOrigin) {
  const std::string origin = Open();
  ASSERT_EQ(Append(origin, 6), absl::OkStatus());
  const std::string fork = Fork(origin);
  const KvView old = Look(origin);
  ASSERT_EQ(registry_->Delete(kOwner, origin), absl::OkStatus());
  EXPECT_EQ(Pages("shared"), 0);
  KvView view;
  ASSERT_EQ(Run(StepOf(fork, 1), view), absl::OkStatus());
  EXPECT_EQ(view.pages, old.pages);
  EXPECT_THAT(view.copies, IsEmpty());
}

TEST_F(SharingTest, TruncationCutsLongerLayers) {
  const std::string name = Open(MakeConfig(2));
  ASSERT_EQ(Append(name, 10, 0), absl::OkStatus());
  ASSERT_EQ(Append(name, 3, 1), absl::OkStatus());
  EXPECT_EQ(Cut(name, 5), absl::OkStatus());
  EXPECT_THAT(Info(name).layer_lengths, ElementsAre(5, 3));
  EXPECT_EQ(Pages("used"), 3);
  EXPECT_EQ(Cut(name, 100), absl::OkStatus());
  EXPECT_THAT(Info(name).layer_lengths, ElementsAre(5, 3));
  KvStep step = StepOf(name, 2);
  step.expected_position = 5;
  EXPECT_EQ(Run(step), absl::OkStatus());
  EXPECT_EQ(Cut(name, 0), absl::OkStatus());
  EXPECT_EQ(Pages("used"), 0);
  EXPECT_THAT(Cut(name, -1), IsInvalid());
}

// What is cut stays for those that share it, and is not overwritten.
TEST_F(SharingTest, TruncationOfASharedPage) {
  const std::string origin = Open();
  ASSERT_EQ(Append(origin, 12), absl::OkStatus());
  const std::string fork = Fork(origin);
  ASSERT_EQ(Cut(origin, 6), absl::OkStatus());
  EXPECT_EQ(Length(fork), 12);
  KvView view;
  ASSERT_EQ(Run(StepOf(origin, 1), view), absl::OkStatus());
  ASSERT_THAT(view.copies, SizeIs(1));
  EXPECT_EQ(view.copies[0].from, Look(fork).pages[1]);
}

TEST_F(SharingTest, WhatIsReservedIsThere) {
  const std::string greedy = Open(),
                    saving = Open(MakeConfig(2), {.reserved_tokens = 9});
  EXPECT_EQ(Pages("reserved"), 6);
  ASSERT_EQ(Append(greedy, 40), absl::OkStatus());
  EXPECT_THAT(Append(greedy, 1), IsFull());
  EXPECT_EQ(Append(saving, 9, 0), absl::OkStatus());
  EXPECT_EQ(Append(saving, 12, 1), absl::OkStatus());  // fills the last page
  EXPECT_THAT(Append(saving, 1, 1), IsFull());
  EXPECT_EQ(Pages("reserved"), 0);
  EXPECT_EQ(Info(saving).reserved_tokens, 9);
  // Cutting gives the promise back.
  EXPECT_EQ(Cut(saving, 4), absl::OkStatus());
  EXPECT_EQ(Pages("reserved"), 4);
  EXPECT_THAT(Append(greedy, 1), IsFull());
  EXPECT_EQ(Append(saving, 5, 0), absl::OkStatus());
  ASSERT_EQ(registry_->Delete(kOwner, saving), absl::OkStatus());
  EXPECT_EQ(Pages("reserved"), 0);
  EXPECT_EQ(Append(greedy, 24), absl::OkStatus());
}

TEST_F(SharingTest, WhatCannotBeReservedIsRefusedAtOnce) {
  const std::string name = Open(MakeConfig(), {.reserved_tokens = 14 * 4});
  EXPECT_THAT(
      registry_->Create(kOwner, MakeConfig(), {.reserved_tokens = 9}).status(),
      IsFull());
  EXPECT_THAT(
      registry_->Create(kOwner, MakeConfig(), {.reserved_tokens = 65}).status(),
      IsTooLarge());
  EXPECT_THAT(
      registry_->Create(kOwner, MakeConfig(), {.reserved_tokens = -1}).status(),
      IsInvalid());
  EXPECT_EQ(Pages("reserved"), 14);
  EXPECT_EQ(Info(name).layer_lengths[0], 0);
}

// The copy of a page that a fork makes necessary is reserved with the fork.
TEST_F(SharingTest, AReservationOutlastsForks) {
  const std::string name = Open(MakeConfig(), {.reserved_tokens = 8});
  ASSERT_EQ(Append(name, 2), absl::OkStatus());
  const std::string fork = Fork(name, {.reserved_tokens = 8});
  EXPECT_EQ(Pages("reserved"), 4);  // the rest, and a copy, for both
  const std::string greedy = Open();
  ASSERT_EQ(Append(greedy, 44), absl::OkStatus());
  ASSERT_THAT(Append(greedy, 1), IsFull());
  EXPECT_EQ(Append(name, 6), absl::OkStatus());
  EXPECT_EQ(Append(fork, 6), absl::OkStatus());
  EXPECT_EQ(Pages("reserved"), 0);  // one copy was enough
  EXPECT_EQ(Append(greedy, 4), absl::OkStatus());
}

TEST_F(SharingTest, AForkThatCannotReserveIsRefused) {
  const std::string name = Open(MakeConfig(), {.reserved_tokens = 14 * 4});
  ASSERT_EQ(Append(name, 2), absl::OkStatus());
  EXPECT_THAT(registry_->Fork(kOwner, name, {.reserved_tokens = 12}).status(),
              IsFull());
  EXPECT_EQ(Pages("shared"), 0);
  EXPECT_EQ(Pages("reserved"), 13);
  Fork(name);
  EXPECT_EQ(Pages("reserved"), 14);  // the origin's copy
}

TEST_F(SharingTest, TruncationThatCannotReserveChangesNothing) {
  const std::string name = Open(MakeConfig(), {.reserved_tokens = 10 * 4});
  ASSERT_EQ(Append(name, 40), absl::OkStatus());
  const std::string fork = Fork(name);
  const std::string greedy = Open();
  ASSERT_EQ(Append(greedy, 20), absl::OkStatus());
  // Nine pages stay with the fork, but one more is all that is left.
  EXPECT_THAT(Cut(name, 4), IsFull());
  EXPECT_EQ(Length(name), 40);
  EXPECT_EQ(Pages("reserved"), 0);
  EXPECT_EQ(Cut(name, 36), absl::OkStatus());
  EXPECT_EQ(Pages("reserved"), 1);
  ASSERT_EQ(registry_->Delete(kOwner, fork), absl::OkStatus());
  EXPECT_EQ(Cut(name, 4), absl::OkStatus());
  EXPECT_EQ(Pages("reserved"), 9);
}

TEST_F(SharingTest, ALargeReservationTakesManySlabs) {
  MakeRegistry(/*page_count=*/1600);
  const std::string name = Open(MakeConfig(5), {.reserved_tokens = 300 * 4});
  EXPECT_EQ(Pages("reserved"), 1500);
  for (int layer = 0; layer < 5; ++layer) {
    EXPECT_EQ(Append(name, 300 * 4, layer), absl::OkStatus());
  }
  EXPECT_EQ(Pages("reserved"), 0);
  EXPECT_EQ(Pages("used"), 1500);
  ASSERT_EQ(registry_->Delete(kOwner, name), absl::OkStatus());
  EXPECT_EQ(PoolBytes(), 0u);
}

}  // namespace
}  // namespace attention
