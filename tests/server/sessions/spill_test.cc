// Who makes room for whom, with memory of the host to spill to.
#include <string>
#include <vector>

#include "tests/server/sessions/sessions_fixture.h"

namespace attention {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr int64_t kPageTokens = 4;

class SpillTest : public SessionsTest {
 protected:
  static constexpr int64_t kDevicePages = 16;

  void SetUp() override { Start(48); }
  void Start(int64_t spill_page_count) {
    MakeRegistry(kDevicePages, 1, {}, spill_page_count);
  }

  // Of so many pages.
  std::string OpenWith(int64_t page_count) {
    const std::string name = Open();
    EXPECT_EQ(Append(name, page_count * kPageTokens), absl::OkStatus());
    return name;
  }
  int64_t Spilled() const { return Usage().page_count.spilled; }
  double Moved(const std::string& direction) {
    return *reader_.Value("attention_session_moved_pages_total",
                          {{"direction", direction}});
  }
  double Events(const std::string& event) {
    return *reader_.Value("attention_session_events_total", {{"event", event}});
  }
  // Pages that the last launch brought back.
  int64_t Restored() const {
    int64_t bytes = 0;
    for (const PageMove& move : moves_) bytes += move.to_host ? 0 : move.bytes;
    return bytes / kSmallPageBytes;
  }
};

TEST_F(SpillTest, NothingMovesWhileThereIsRoom) {
  const std::string name = OpenWith(8);
  OpenWith(8);
  EXPECT_THAT(moves_, IsEmpty());
  EXPECT_THAT(Look(name).pages, SizeIs(8));
  EXPECT_THAT(moves_, IsEmpty());
  EXPECT_EQ(Spilled(), 0);
}

TEST_F(SpillTest, WhoWasUnusedForLongestMakesRoom) {
  const std::string first = OpenWith(5);
  const std::string second = OpenWith(5);
  const std::string third = OpenWith(5);
  Look(first);
  const std::vector<void*> pages = Look(second).pages;
  Look(third);
  Look(first);
  OpenWith(3);  // one is free
  EXPECT_EQ(Spilled(), 2);
  ASSERT_THAT(moves_, Not(IsEmpty()));
  EXPECT_EQ(moves_[0].from, pages[0]);
  EXPECT_TRUE(moves_[0].to_host);
  EXPECT_EQ(Events("evicted"), 1);

  // It comes back, and takes from the next one what it needs.
  Look(second);
  EXPECT_EQ(Restored(), 2);
  EXPECT_EQ(Spilled(), 2);
  EXPECT_EQ(Events("restored"), 1);
  EXPECT_EQ(Events("evicted"), 2);
  Look(first);
  EXPECT_EQ(Restored(), 0);
  Look(third);
  EXPECT_EQ(Restored(), 2);
}

TEST_F(SpillTest, NeighboursMoveInOneCopy) {
  MakeRegistry(160, 1, {}, 160);
  const std::string name = OpenWith(kPagesPerSlab);
  const std::string other = OpenWith(160 - kPagesPerSlab);
  OpenWith(kPagesPerSlab);
  ASSERT_THAT(moves_, SizeIs(1));
  EXPECT_EQ(moves_[0].bytes, kPagesPerSlab * kSmallPageBytes);
  Look(name);
  // As many left, one slab after the other.
  EXPECT_THAT(moves_, SizeIs(2));
}

TEST_F(SpillTest, WhatComesBackGoesOn) {
  const std::string name = OpenWith(3);
  ASSERT_EQ(Append(name, 2), absl::OkStatus());
  OpenWith(16);
  EXPECT_EQ(Spilled(), 4);
  EXPECT_EQ(Length(name), 14);
  KvView view;
  KvStep step = StepOf(name, 5, 5);
  step.expected_position = 14;
  ASSERT_EQ(Run(step, view), absl::OkStatus());
  EXPECT_EQ(Restored(), 4);
  EXPECT_THAT(view.pages, SizeIs(5));
  EXPECT_THAT(view.pages, Not(Contains(nullptr)));
  EXPECT_EQ(Usage().resident_tokens, 19 + 64);
}

// A launch has all its sessions on the device.
TEST_F(SpillTest, StepsOfALaunchMakeNoRoomForEachOther) {
  const std::string first = OpenWith(10);
  const std::string second = OpenWith(10);
  const uint64_t number = BeginBatch();
  KvView view;
  EXPECT_EQ(Begin(number, StepOf(first, 0, 1), view), absl::OkStatus());
  EXPECT_FALSE(view.waits_for_launch);
  EXPECT_THAT(Begin(number, StepOf(second, 0, 1), view), IsFull());
  EXPECT_TRUE(view.waits_for_launch);
  EXPECT_THAT(Begin(number, StepOf(first, 28), view), IsFull());
  EXPECT_EQ(Begin(number, StepOf(first, 24), view), absl::OkStatus());
  Move();
  // They do for those of the next one, of the same batch or not.
  EXPECT_EQ(Begin(number, StepOf(second, 0, 1), view), absl::OkStatus());
  EXPECT_FALSE(view.waits_for_launch);
  Move();
  EXPECT_THAT(Begin(number, StepOf(second, 28), view), IsFull());
  EXPECT_FALSE(view.waits_for_launch);
  Move();
  AllBegun(number);
  EndBatch(number);
  EXPECT_EQ(Look(first).key_length, 64);
}

TEST_F(SpillTest, ASharedPageLeavesOnceAndLast) {
  const std::string origin = OpenWith(6);
  const std::string fork = Fork(origin);
  ASSERT_EQ(Append(fork, 2 * kPageTokens), absl::OkStatus());
  // The fork was used last. What it shares stays.
  const std::string other = OpenWith(8);
  const std::string another = Open();
  Look(fork);
  Look(other);
  ASSERT_EQ(Append(another, kPageTokens), absl::OkStatus());
  // Two pages of the fork's own or six of both: eight were in use.
  EXPECT_EQ(Spilled(), 1);
  ASSERT_EQ(Append(another, 7 * kPageTokens), absl::OkStatus());
  EXPECT_EQ(Spilled(), 8);
  EXPECT_EQ(Moved("spill"), 8);
  // Six come back for the origin, and are there for the fork.
  Look(origin);
  EXPECT_EQ(Restored(), 6);
  Look(fork);
  EXPECT_EQ(Restored(), 2);
}

// The fork's own pages leave, what it shares does not: the origin is in use.
TEST_F(SpillTest, SharedPagesStayForWhoUsesThem) {
  const std::string origin = OpenWith(6);
  const std::string fork = Fork(origin);
  ASSERT_EQ(Append(fork, 4 * kPageTokens), absl::OkStatus());
  Look(origin);
  const uint64_t number = BeginBatch();
  KvView view;
  EXPECT_EQ(Begin(number, StepOf(origin, 0, 1), view), absl::OkStatus());
  EXPECT_EQ(Begin(number, StepOf(Open(), 10 * kPageTokens), view),
            absl::OkStatus());
  EXPECT_EQ(Spilled(), 4);
  EXPECT_THAT(Begin(number, StepOf(Open(), 1), view), IsFull());
  Move();
  AllBegun(number);
  EndBatch(number);
}

TEST_F(SpillTest, SpilledSessionsAreForkedCutAndDeleted) {
  const std::string name = OpenWith(8);
  OpenWith(16);
  ASSERT_EQ(Spilled(), 8);
  const std::string fork = Fork(name);
  EXPECT_THAT(moves_, Not(IsEmpty()));
  EXPECT_EQ(Spilled(), 8);
  EXPECT_EQ(Cut(name, 9), absl::OkStatus());
  EXPECT_EQ(Spilled(), 8);  // the fork has them
  EXPECT_EQ(Cut(fork, 17), absl::OkStatus());
  EXPECT_EQ(Spilled(), 5);
  EXPECT_EQ(registry_->Delete(kOwner, fork), absl::OkStatus());
  EXPECT_EQ(Spilled(), 3);
  // The last page is the session's own again.
  KvView view;
  ASSERT_EQ(Run(StepOf(name, 1), view), absl::OkStatus());
  EXPECT_THAT(view.copies, IsEmpty());
  EXPECT_EQ(Restored(), 3);
  clock_.Advance(kDefaultSessionTtl);
  EXPECT_EQ(registry_->ReleaseExpired(), 2);
  EXPECT_EQ(Spilled(), 0);
  EXPECT_EQ(spill_pools_[0]->usage().in_use_bytes, 0u);
  EXPECT_EQ(PoolBytes(), 0u);
}

TEST_F(SpillTest, CreatingAndForkingMakeRoomBeforeTheNextLaunch) {
  const std::string name = OpenWith(16);
  const std::string reserved =
      Open(MakeConfig(), {.reserved_tokens = 8 * kPageTokens});
  EXPECT_EQ(Spilled(), 8);
  // What a session reserves is on the device, also if it is there already.
  const std::string fork = Fork(
      name, {.position = 7 * kPageTokens, .reserved_tokens = 7 * kPageTokens});
  EXPECT_EQ(Spilled(), 8);
  ASSERT_EQ(Append(reserved, 1), absl::OkStatus());
  EXPECT_EQ(Restored(), 7);
  EXPECT_EQ(Moved("spill"), 8 + 7);
  EXPECT_THAT(Append(name, 1), IsFull());
  EXPECT_EQ(Append(fork, 0), absl::OkStatus());
  EXPECT_EQ(Restored(), 0);
}

// What is reserved can be appended, whatever else happens.
TEST_F(SpillTest, SessionsWithAReservationStay) {
  const std::string reserved =
      Open(MakeConfig(), {.reserved_tokens = 8 * kPageTokens});
  ASSERT_EQ(Append(reserved, 6 * kPageTokens), absl::OkStatus());
  const std::string other = OpenWith(8);
  OpenWith(8);
  EXPECT_EQ(Spilled(), 8);
  EXPECT_THAT(Append(OpenWith(1), 8 * kPageTokens), IsFull());
  ASSERT_EQ(Append(reserved, 2 * kPageTokens), absl::OkStatus());
  EXPECT_EQ(Restored(), 0);
  Look(other);
  EXPECT_EQ(Restored(), 8);
}

// Device and host are as full as they get: one can still take the other's
// place.
TEST_F(SpillTest, AFullHostMakesProgress) {
  Start(16);
  const std::string first = OpenWith(15);
  const std::string second = OpenWith(16);
  EXPECT_EQ(Spilled(), 15);
  EXPECT_THAT(Append(Open(), 1), IsFull());
  for (int round = 0; round < 3; ++round) {
    EXPECT_THAT(Look(first).pages, SizeIs(15));
    EXPECT_EQ(Restored(), 15);
    EXPECT_THAT(Look(second).pages, SizeIs(16));
  }
  // But nothing can be added.
  KvView view;
  EXPECT_THAT(Run(StepOf(second, 1), view), IsFull());
  EXPECT_FALSE(view.waits_for_launch);
  EXPECT_EQ(Length(second), 64);
  EXPECT_EQ(registry_->Delete(kOwner, first), absl::OkStatus());
  EXPECT_EQ(Append(Open(), 15 * kPageTokens), absl::OkStatus());
}

// One that is larger than the device still has its layers there in turn.
TEST_F(SpillTest, LayersOfOneSessionMakeRoomForEachOther) {
  const std::string name = Open(MakeConfig(4));
  for (int round = 1; round <= 2; ++round) {
    for (int layer = 0; layer < 4; ++layer) {
      ASSERT_EQ(Append(name, 5 * kPageTokens, layer), absl::OkStatus());
      EXPECT_EQ(Length(name, layer), round * 5 * kPageTokens);
    }
  }
  EXPECT_EQ(Spilled(), 4 * 10 - 16);
}

TEST_F(SpillTest, WindowsFreeWhatWasSpilled) {
  const std::string name = Open(MakeWindow(6));
  ASSERT_EQ(Append(name, 24), absl::OkStatus());
  OpenWith(16);
  ASSERT_EQ(Spilled(), 6);
  ASSERT_EQ(Append(name, 4), absl::OkStatus());
  ASSERT_EQ(Append(name, 4), absl::OkStatus());
  EXPECT_EQ(Info(name).resident_bytes, 3 * kSmallPageBytes);
}

// Pages of another size need a slab as a whole. Whatever sessions have pages
// there, no more than those leave.
TEST_F(SpillTest, SessionsWithOtherPagesMakeRoom) {
  MakeRegistry(160, 1, {}, 160);
  std::vector<std::string> sessions;
  for (int i = 0; i < 4; ++i) sessions.push_back(Open());
  for (int page = 0; page < 40; ++page) {
    for (const std::string& name : sessions) {
      ASSERT_EQ(Append(name, kPageTokens), absl::OkStatus());
    }
  }
  SessionConfig large = MakeConfig();
  large.paged.page_tokens = 2 * kPageTokens;
  const std::string other = Open(large);
  ASSERT_EQ(Append(other, 1), absl::OkStatus());
  EXPECT_EQ(Spilled(), kPagesPerSlab);
  EXPECT_EQ(Append(other, kPagesPerSlab * kPageTokens - 1), absl::OkStatus());
  EXPECT_EQ(Spilled(), kPagesPerSlab);
  Look(sessions[3]);
  EXPECT_EQ(Restored(), kPagesPerSlab / 4);
  EXPECT_THAT(Append(other, 160 * kPageTokens), IsFull());
}

// What was to be copied is as good as gone, if the device cannot.
TEST_F(SpillTest, SessionsAreLostThatCannotBeCopied) {
  const std::string away = OpenWith(6);
  const std::string back = OpenWith(4);
  const std::string leaving = OpenWith(6);
  OpenWith(12);
  ASSERT_EQ(Spilled(), 12);
  const std::string bystander = Open();
  const uint64_t number = BeginBatch();
  KvView view;
  EXPECT_EQ(Begin(number, StepOf(back, 0, 1), view), absl::OkStatus());
  EXPECT_EQ(registry_->cache(0)->Move([](absl::Span<const PageMove> moves) {
    EXPECT_THAT(moves, Not(IsEmpty()));
    return absl::InternalError("broken");
  }),
            absl::InternalError("broken"));
  EndBatch(number, false);
  for (const std::string& name : {away, back, leaving}) {
    EXPECT_TRUE(Info(name).is_lost);
    EXPECT_THAT(Append(name, 1), IsLost());
  }
  EXPECT_FALSE(Info(bystander).is_lost);
  EXPECT_EQ(Spilled(), 0);
}

// Otherwise only those that the batch appended to are.
TEST_F(SpillTest, ABatchThatFailsLaterLosesNothingThatItMoved) {
  const std::string name = OpenWith(8);
  const std::string other = OpenWith(16);
  const uint64_t number = BeginBatch();
  KvView view;
  EXPECT_EQ(Begin(number, StepOf(name, 0, 1), view), absl::OkStatus());
  Move();
  EndBatch(number, false);
  EXPECT_FALSE(Info(name).is_lost);
  EXPECT_FALSE(Info(other).is_lost);
}

// A full device is not as good as any other.
TEST_F(SpillTest, NewSessionsGoWhereTheFewestPagesAreSpilled) {
  MakeRegistry(kDevicePages, 2, {}, 48);
  const auto fill = [&](int64_t page_count) {
    const std::string name = Open();
    const int device = Info(name).device;
    const uint64_t number = BeginBatch(device);
    KvView view;
    EXPECT_EQ(
        Begin(number, StepOf(name, page_count * kPageTokens), view, device),
        absl::OkStatus());
    Move(device);
    AllBegun(number, device);
    EndBatch(number, true, device);
    return device;
  };
  EXPECT_EQ(fill(16), 0);
  EXPECT_EQ(fill(16), 1);
  EXPECT_EQ(fill(8), 0);
  EXPECT_EQ(fill(16), 1);
  EXPECT_EQ(fill(1), 0);
}

TEST_F(SpillTest, SpilledTokensCountForTheOwner) {
  MakeRegistry(kDevicePages, 1, {.max_owner_tokens = 80}, 48);
  OpenWith(10);
  const std::string name = OpenWith(10);
  EXPECT_EQ(Spilled(), 4);
  EXPECT_THAT(Append(name, 1), IsOverQuota());
}

}  // namespace
}  // namespace attention
