// Sessions with sliding windows.
#include <limits>
#include <string>

#include "tests/server/sessions/sessions_fixture.h"

namespace attention {
namespace {

using ::testing::IsNull;
using ::testing::NotNull;

class WindowTest : public SessionsTest {
 protected:
  void SetUp() override { MakeRegistry(); }
};

TEST_F(WindowTest, FreesPagesBehindTheWindow) {
  const std::string name = Open(MakeWindow(5));
  for (int i = 0; i < 100; ++i) {
    KvView view;
    ASSERT_EQ(Run(StepOf(name, 1, 1), view), absl::OkStatus());
    EXPECT_EQ(view.window_left, 5);
    for (int key = 0; key <= i; ++key) {
      if (key >= i - 5) {
        EXPECT_THAT(view.pages[key / 4], NotNull());
      }
    }
    EXPECT_LE(Pages("used"), 3);
  }
  EXPECT_EQ(Length(name), 100);
  // The first that a query at 99 sees is 94, in the page of 92.
  EXPECT_EQ(Info(name).resident_tokens, 8);
  EXPECT_EQ(Info(name).resident_bytes, 2 * kSmallPageBytes);
}

TEST_F(WindowTest, KeepsSinks) {
  const std::string name = Open(MakeWindow(5, /*sink_tokens=*/5));
  for (int i = 0; i < 40; ++i) {
    ASSERT_EQ(Run(StepOf(name, 1, 1)), absl::OkStatus());
  }
  const KvView view = Look(name);
  EXPECT_EQ(view.sink_tokens, 5);
  EXPECT_THAT(view.pages[0], NotNull());
  EXPECT_THAT(view.pages[1], NotNull());
  EXPECT_THAT(view.pages[2], IsNull());
  EXPECT_EQ(Info(name).resident_tokens, 8 + 8);
}

TEST_F(WindowTest, OneAppendMayBeLongerThanTheWindow) {
  const std::string name = Open(MakeWindow(5));
  KvView view;
  ASSERT_EQ(Run(StepOf(name, 40, 40), view), absl::OkStatus());
  EXPECT_THAT(view.pages, testing::Each(NotNull()));
  ASSERT_EQ(Run(StepOf(name, 1, 1), view), absl::OkStatus());
  EXPECT_EQ(Info(name).resident_tokens, 41 - 32);
}

// So that a draft that is rejected costs nothing.
TEST_F(WindowTest, TheLastAppendCanBeUndone) {
  const std::string name = Open(MakeWindow(5));
  ASSERT_EQ(Append(name, 50), absl::OkStatus());
  ASSERT_EQ(Run(StepOf(name, 30, 30)), absl::OkStatus());
  EXPECT_EQ(Cut(name, 50), absl::OkStatus());
  EXPECT_EQ(Run(StepOf(name, 30, 30)), absl::OkStatus());
  EXPECT_EQ(Run(StepOf(name, 1, 1)), absl::OkStatus());
  EXPECT_THAT(Cut(name, 50), IsFreed());
  EXPECT_EQ(Length(name), 81);
  EXPECT_EQ(Cut(name, 80), absl::OkStatus());
}

TEST_F(WindowTest, QueriesMustNotSeeWhatIsFreed) {
  const std::string name = Open(MakeWindow(4));
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(Append(name, 4), absl::OkStatus());
  }
  // Pages up to token 32 are gone. Query 36 is the first that needs none.
  EXPECT_EQ(Run(StepOf(name, 0, 4)), absl::OkStatus());
  EXPECT_THAT(Run(StepOf(name, 0, 5)), IsFreed());
  KvStep step = StepOf(name, 0, 5);
  step.key_range = KeyRange{32, 40};
  EXPECT_EQ(Run(step), absl::OkStatus());
  // With an append the step's first query may be older than its tokens.
  EXPECT_EQ(Run(StepOf(name, 4, 8)), absl::OkStatus());
  EXPECT_EQ(Run(StepOf(name, 0, 8)), absl::OkStatus());
}

TEST_F(WindowTest, ForksNeedTheirKeys) {
  const std::string name = Open(MakeWindow(5, /*sink_tokens=*/2));
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(Append(name, 4), absl::OkStatus());
  }
  // Tokens 4 to 27 are gone.
  for (int64_t position : {0, 1, 4, 33, 40}) {
    const std::string fork = Fork(name, {.position = position});
    EXPECT_EQ(Run(StepOf(fork, 20, 20)), absl::OkStatus()) << position;
    EXPECT_EQ(Length(fork), position + 20);
  }
  for (int64_t position : {5, 8, 20, 32}) {
    EXPECT_THAT(registry_->Fork(kOwner, name, {.position = position}).status(),
                IsFreed())
        << position;
    EXPECT_THAT(Cut(name, position), IsFreed());
  }
  EXPECT_EQ(Cut(name, 4), absl::OkStatus());
  EXPECT_EQ(Info(name).resident_tokens, 4);
  ASSERT_EQ(Run(StepOf(name, 20, 20)), absl::OkStatus());
  EXPECT_THAT(Look(name).pages, testing::Each(NotNull()));
}

TEST_F(WindowTest, AWindowOfNothingButItself) {
  const std::string name = Open(MakeWindow(0));
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(Run(StepOf(name, 1, 1)), absl::OkStatus());
    EXPECT_EQ(Cut(name, i + 1), absl::OkStatus());
    EXPECT_EQ(Run(StepOf(Fork(name), 1, 1)), absl::OkStatus());
  }
  EXPECT_THAT(Cut(name, 10), IsFreed());
}

// A step of the same batch may still look at what a later one passes.
TEST_F(WindowTest, FreedPagesAreNotReusedWithinABatch) {
  MakeRegistry(/*page_count=*/16);
  const std::string name = Open(MakeWindow(4)), other = Open();
  ASSERT_EQ(Append(name, 48), absl::OkStatus());
  ASSERT_EQ(Append(other, 12), absl::OkStatus());
  const uint64_t number = BeginBatch();
  KvView view;
  ASSERT_EQ(Begin(number, StepOf(name, 1, 1), view), absl::OkStatus());
  EXPECT_EQ(Pages("used"), 16);
  EXPECT_THAT(Begin(number, StepOf(other, 1), view), IsFull());
  AllBegun(number);
  EXPECT_EQ(Pages("used"), 5);
  EndBatch(number);
  EXPECT_EQ(Append(other, 1), absl::OkStatus());
}

TEST_F(WindowTest, SharedPagesStayForOthers) {
  const std::string name = Open(MakeWindow(4));
  ASSERT_EQ(Append(name, 20), absl::OkStatus());
  const std::string fork = Fork(name);
  ASSERT_EQ(Append(name, 4), absl::OkStatus());
  EXPECT_EQ(Pages("used"), 6);
  EXPECT_EQ(Info(name).resident_tokens, 8);
  EXPECT_EQ(Info(fork).resident_tokens, 20);
  EXPECT_THAT(Look(fork).pages, testing::Each(NotNull()));
}

TEST_F(WindowTest, RefusesWhatMakesNoSense) {
  SessionConfig top_left = MakeWindow(4);
  top_left.paged.heads.mask = MaskKind::kCausalTopLeft;
  SessionConfig sinks_only = MakeConfig();
  sinks_only.sink_tokens = 4;
  for (const SessionConfig& config :
       {top_left, sinks_only, MakeWindow(-2), MakeWindow(4, -1)}) {
    EXPECT_THAT(registry_->Create(kOwner, config, {}).status(), IsInvalid());
  }
}

TEST_F(WindowTest, WidestWindow) {
  const std::string name =
      Open(MakeWindow(std::numeric_limits<int64_t>::max(), kMaxLayerTokens));
  ASSERT_EQ(Append(name, 9), absl::OkStatus());
  EXPECT_EQ(Run(StepOf(name, 1, 1)), absl::OkStatus());
  EXPECT_EQ(Run(StepOf(name, 0, 100)), absl::OkStatus());
  EXPECT_EQ(Cut(name, 3), absl::OkStatus());
}

}  // namespace
}  // namespace attention
