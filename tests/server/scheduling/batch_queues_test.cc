#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/server/scheduling/test_queues.h"

namespace attention {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::IsNull;
using ::testing::NotNull;

TEST(BatchQueuesTest, TakesOneConfigurationInOrderOfArrival) {
  TestQueues queues({});
  Push(queues, {.config = 1, .tokens = 10});
  Push(queues, {.config = 2, .tokens = 20});
  Push(queues, {.config = 1, .tokens = 11});
  Push(queues, {.config = 1, .tokens = 12});
  const auto batch = queues.TakeBatch(kStart, false);
  ASSERT_THAT(batch, NotNull());
  EXPECT_EQ(batch->config, TestConfig(1));
  EXPECT_EQ(batch->start_time, kStart);
  EXPECT_EQ(batch->flush_reason, FlushReason::kIdle);
  EXPECT_THAT(Tokens(batch->works), ElementsAre(10, 11, 12));
  EXPECT_EQ(queues.size(), 1u);
  EXPECT_THAT(Take(queues), ElementsAre(20));
  EXPECT_THAT(queues.TakeBatch(kStart, false), IsNull());
  EXPECT_EQ(queues.bytes(), 0u);
}

TEST(BatchQueuesTest, InterleavedConfigurationsFillTheirBatches) {
  TestQueues queues({.max_batch_requests = 4});
  for (int i = 0; i < 8; ++i) {
    Push(queues, {.config = 1, .tokens = 100 + i});
    Push(queues, {.config = 2, .tokens = 200 + i});
  }
  EXPECT_THAT(Take(queues), ElementsAre(100, 101, 102, 103));
  EXPECT_THAT(Take(queues), ElementsAre(200, 201, 202, 203));
  EXPECT_THAT(Take(queues), ElementsAre(104, 105, 106, 107));
  EXPECT_THAT(Take(queues), ElementsAre(204, 205, 206, 207));
}

TEST(BatchQueuesTest, LimitsByRequestsBytesAndTokens) {
  const auto fill = [](TestQueues& queues) {
    for (int i = 0; i < 6; ++i) Push(queues, {.bytes = 10, .tokens = 3});
  };
  TestQueues by_requests({.max_batch_requests = 2});
  TestQueues by_bytes({.max_batch_bytes = 39});
  TestQueues by_exact_bytes({.max_batch_bytes = 40});
  TestQueues by_tokens({.max_batch_tokens = 15});
  for (TestQueues* queues :
       {&by_requests, &by_bytes, &by_exact_bytes, &by_tokens}) {
    fill(*queues);
  }
  EXPECT_EQ(by_requests.TakeBatch(kStart, false)->works.size(), 2u);
  EXPECT_EQ(by_bytes.TakeBatch(kStart, false)->works.size(), 3u);
  EXPECT_EQ(by_exact_bytes.TakeBatch(kStart, false)->works.size(), 4u);
  const auto full = by_tokens.TakeBatch(kStart, false);
  EXPECT_EQ(full->works.size(), 5u);
  EXPECT_EQ(full->flush_reason, FlushReason::kFull);
  const auto rest = by_tokens.TakeBatch(kStart, false);
  EXPECT_EQ(rest->works.size(), 1u);
  EXPECT_EQ(rest->flush_reason, FlushReason::kIdle);
}

TEST(BatchQueuesTest, AWorkAboveALimitRunsAlone) {
  TestQueues queues({.max_batch_bytes = 100, .max_batch_tokens = 1000});
  Push(queues, {.bytes = 10, .tokens = 1});
  Push(queues, {.bytes = 101, .tokens = 2});
  Push(queues, {.bytes = 0, .tokens = 3});
  Push(queues, {.bytes = 10, .tokens = 1001});
  Push(queues, {.bytes = 10, .tokens = 4});
  EXPECT_THAT(Take(queues), ElementsAre(1));
  EXPECT_THAT(Take(queues), ElementsAre(2));
  EXPECT_THAT(Take(queues), ElementsAre(3));
  EXPECT_THAT(Take(queues), ElementsAre(1001));
  EXPECT_THAT(Take(queues), ElementsAre(4));
}

TEST(BatchQueuesTest, ConfigurationsTakeTurns) {
  TestQueues queues({.max_batch_requests = 1});
  // A flood of the first must not delay the others by more than one batch each.
  for (int i = 0; i < 100; ++i) Push(queues, {.config = 1, .tokens = 1});
  Push(queues, {.config = 2, .tokens = 2});
  Push(queues, {.config = 3, .tokens = 3});
  EXPECT_THAT(Take(queues), ElementsAre(1));
  // A queue that was emptied and filled again goes to the back.
  EXPECT_THAT(Take(queues), ElementsAre(2));
  Push(queues, {.config = 2, .tokens = 2});
  EXPECT_THAT(Take(queues), ElementsAre(3));
  EXPECT_THAT(Take(queues), ElementsAre(1));
  EXPECT_THAT(Take(queues), ElementsAre(2));
  EXPECT_THAT(Take(queues), ElementsAre(1));
}

TEST(BatchQueuesTest, DelayHoldsBackUntilTheFirstHasWaited) {
  const absl::Duration delay = absl::Milliseconds(5);
  TestQueues queues({.max_batch_requests = 3, .max_queue_delay = delay});
  EXPECT_EQ(queues.EarliestReady(), absl::InfiniteFuture());
  Push(queues, {.tokens = 1}, kStart);
  Push(queues, {.tokens = 2}, kStart + absl::Milliseconds(4));
  EXPECT_EQ(queues.EarliestReady(), kStart + delay);
  EXPECT_THAT(Take(queues, kStart + delay - absl::Nanoseconds(1)), IsEmpty());
  const auto batch = queues.TakeBatch(kStart + delay, false);
  ASSERT_THAT(batch, NotNull());
  EXPECT_THAT(Tokens(batch->works), ElementsAre(1, 2));
  EXPECT_EQ(batch->flush_reason, FlushReason::kDelay);
}

TEST(BatchQueuesTest, AFullBatchDoesNotWaitForTheDelay) {
  TestQueues queues(
      {.max_batch_requests = 2, .max_queue_delay = absl::Seconds(1)});
  Push(queues, {.config = 1, .tokens = 1});  // has the first turn
  Push(queues, {.config = 2, .tokens = 2});
  Push(queues, {.config = 2, .tokens = 3});
  Push(queues, {.config = 2, .tokens = 4});
  EXPECT_EQ(queues.EarliestReady(), absl::InfinitePast());
  const auto batch = queues.TakeBatch(kStart, false);
  ASSERT_THAT(batch, NotNull());
  EXPECT_THAT(Tokens(batch->works), ElementsAre(2, 3));
  EXPECT_EQ(batch->flush_reason, FlushReason::kFull);
  EXPECT_THAT(Take(queues), IsEmpty());
  // What was passed over has kept its turn.
  EXPECT_THAT(Take(queues, kStart + absl::Seconds(1)), ElementsAre(1));
  EXPECT_THAT(Take(queues, kStart + absl::Seconds(1)), ElementsAre(4));
}

TEST(BatchQueuesTest, DrainingWaitsForNothing) {
  TestQueues queues({.max_queue_delay = absl::Seconds(1)});
  Push(queues, {.tokens = 1});
  EXPECT_THAT(Take(queues), IsEmpty());
  const auto batch = queues.TakeBatch(kStart, true);
  ASSERT_THAT(batch, NotNull());
  EXPECT_EQ(batch->flush_reason, FlushReason::kDrain);
}

TEST(BatchQueuesTest, TakesExpiredWorkEarliestFirst) {
  TestQueues queues({});
  Push(queues, {.tokens = 1, .deadline = kStart + absl::Seconds(3)});
  Push(queues, {.tokens = 2});
  Push(queues,
       {.config = 2, .tokens = 3, .deadline = kStart + absl::Seconds(1)});
  Push(queues, {.tokens = 4, .deadline = kStart + absl::Seconds(9)});
  EXPECT_EQ(queues.EarliestDeadline(), kStart + absl::Seconds(1));
  EXPECT_THAT(queues.TakeExpired(kStart), IsEmpty());
  EXPECT_THAT(Tokens(queues.TakeExpired(kStart + absl::Seconds(3))),
              ElementsAre(3, 1));
  EXPECT_EQ(queues.EarliestDeadline(), kStart + absl::Seconds(9));
  EXPECT_THAT(Take(queues), ElementsAre(4, 2));
  EXPECT_EQ(queues.EarliestDeadline(), absl::InfiniteFuture());
}

TEST(BatchQueuesTest, OrdersByPriorityThenDeadlineThenArrival) {
  TestQueues queues({});
  const absl::Time soon = kStart + absl::Seconds(1);
  Push(queues, {.tokens = 1, .priority = -1});
  Push(queues, {.tokens = 2});
  Push(queues, {.tokens = 3, .deadline = kStart + absl::Seconds(2)});
  Push(queues, {.tokens = 4, .deadline = soon});
  Push(queues, {.tokens = 5, .deadline = soon});
  Push(queues, {.tokens = 6, .priority = 3});
  Push(queues, {.tokens = 7, .deadline = soon, .priority = -1});
  EXPECT_THAT(Take(queues), ElementsAre(6, 4, 5, 3, 2, 7, 1));
}

TEST(BatchQueuesTest, PriorityIsAmongTheTenantsOwnWorks) {
  TestQueues queues({.max_batch_requests = 1});
  Push(queues, {.tokens = 1, .tenant = "a"});
  Push(queues, {.tokens = 2, .tenant = "b", .priority = 100});
  Push(queues, {.tokens = 3, .tenant = "b", .priority = 100});
  EXPECT_THAT(Take(queues), ElementsAre(1));
}

TEST(BatchQueuesTest, ABatchCarriesSeveralTenants) {
  TestQueues queues({.max_batch_requests = 4});
  for (int i = 0; i < 10; ++i) Push(queues, {.tokens = 1, .tenant = "flood"});
  Push(queues, {.config = 2, .tokens = 2, .tenant = "flood"});
  Push(queues, {.tokens = 3, .tenant = "rare"});
  // The tenant that has least of the batch is next.
  EXPECT_THAT(Take(queues), ElementsAre(1, 3, 1, 1));
}

TEST(BatchQueuesTest, TenantsBeyondTheBoundShareATurn) {
  TestQueues queues({.max_batch_requests = 1, .max_tenants = 2});
  for (int i = 0; i < 3; ++i) {
    Push(queues, {.tokens = 1, .tenant = "a"});
    Push(queues, {.tokens = 2, .tenant = "b"});
    for (const char* name : {"c", "d", "e"}) {
      Push(queues, {.tokens = 3, .tenant = name});
    }
  }
  std::vector<int64_t> order;
  for (int i = 0; i < 9; ++i) order.push_back(Take(queues).at(0));
  EXPECT_THAT(order, ElementsAre(1, 2, 3, 1, 2, 3, 1, 2, 3));
  EXPECT_EQ(queues.size(), 6u);
}

TEST(BatchQueuesTest, LimitsByPredictedTime) {
  // 20 us a launch, 1 us for 10,000 bytes.
  TestQueues queues({.max_batch_time = absl::Microseconds(30)});
  for (int i = 0; i < 5; ++i) Push(queues, {.bytes = 40'000});
  Push(queues, {.bytes = 200'000, .tokens = 2});
  Push(queues, {.tokens = 3});
  const auto full = queues.TakeBatch(kStart, false);
  EXPECT_EQ(full->works.size(), 2u);
  EXPECT_EQ(full->flush_reason, FlushReason::kFull);
  EXPECT_EQ(Take(queues).size(), 2u);
  EXPECT_EQ(Take(queues).size(), 1u);
  EXPECT_THAT(Take(queues), ElementsAre(2));  // alone
  EXPECT_THAT(Take(queues), ElementsAre(3));
}

TEST(BatchQueuesTest, PredictsWhatWaits) {
  TestQueues queues({.max_batch_requests = 2});
  EXPECT_EQ(queues.Predicted(0, kAnyDevice), absl::ZeroDuration());
  for (int i = 0; i < 6; ++i) Push(queues, {.bytes = 100'000});
  // 3 launches and 600 kB.
  EXPECT_EQ(queues.Predicted(0, kAnyDevice) / absl::Microseconds(1),
            absl::Microseconds(120) / absl::Microseconds(1));
  queues.TakeAll();
  EXPECT_EQ(queues.Predicted(0, kAnyDevice), absl::ZeroDuration());
}

TEST(BatchQueuesTest, WhatIsAheadComesFirstInTheSameQueue) {
  TestQueues queues({});
  const auto ahead = [&queues](const WorkSpec& spec) {
    return queues.CostAhead(*MakeWork(spec)).bytes;
  };
  EXPECT_EQ(ahead({}), 0);
  Push(queues, {.bytes = 1, .tenant = "a"});
  Push(queues, {.bytes = 10, .tenant = "a", .priority = 5});
  Push(queues, {.config = 2, .bytes = 100, .tenant = "a"});
  Push(queues, {.bytes = 1000, .tenant = "b"});
  Push(queues, {.bytes = 10'000, .deadline = kStart, .tenant = "a"});
  EXPECT_EQ(ahead({.tenant = "a"}), 10'011);
  EXPECT_EQ(ahead({.tenant = "a", .priority = 1}), 10);
  EXPECT_EQ(ahead({.tenant = "a", .priority = 6}), 0);
  EXPECT_EQ(ahead({.deadline = kStart + absl::Seconds(1), .tenant = "a"}),
            10'010);
  EXPECT_EQ(ahead({.tenant = "c"}), 0);
}

TEST(BatchQueuesTest, ResidentWorksShareBatchesWithTheirKindOnly) {
  TestQueues queues({});
  Push(queues, {.tokens = 1});
  Push(queues, {.tokens = 2, .page_tokens = 16});
  Push(queues, {.tokens = 3, .page_tokens = 64});
  Push(queues, {.tokens = 4, .page_tokens = 16});
  auto fp8 = MakeWork({.tokens = 5, .page_tokens = 16});
  fp8->kv_data_type = KvDataType::kFloat8E4M3;
  const WorkCost cost = CostOf(*fp8);
  queues.Push(std::move(fp8), cost);
  for (int64_t tokens : {6, 7}) {
    auto balanced = MakeWork({.tokens = tokens, .page_tokens = 16});
    balanced->split_policy = SplitPolicy::kBalanced;
    const WorkCost its_cost = CostOf(*balanced);
    queues.Push(std::move(balanced), its_cost);
  }
  EXPECT_THAT(Take(queues), ElementsAre(1));
  EXPECT_THAT(Take(queues), ElementsAre(2, 4));
  EXPECT_THAT(Take(queues), ElementsAre(3));
  EXPECT_THAT(Take(queues), ElementsAre(5));
  EXPECT_THAT(Take(queues), ElementsAre(6, 7));
}

TEST(BatchQueuesTest, NumbersTheResidentBatchesOfEachDevice) {
  TestQueues queues({.max_batch_requests = 1});
  for (int i = 0; i < 4; ++i) {
    Push(queues, {.page_tokens = 16});
    Push(queues, {});
    Push(queues, {.page_tokens = 32});
  }
  uint64_t next[2] = {};
  for (int i = 0; i < 12; ++i) {
    const size_t device = i % 3 == 0 ? 1 : 0;
    const auto batch = queues.TakeBatch(kStart, false, device);
    if (batch->works.front()->is_resident()) {
      EXPECT_EQ(batch->kv_batch_number, next[device]++);
    } else {
      EXPECT_EQ(batch->kv_batch_number, std::nullopt);
    }
  }
  EXPECT_EQ(next[0] + next[1], 8u);
  EXPECT_GT(next[1], 0u);
}

// Whatever their deadlines, and whoever comes and goes: tenants beyond the bound, who share turns for a while
// and then have their own, works that are not resident, limits of all kinds.
TEST(BatchQueuesTest, ResidentWorksOfATenantKeepTheirOrder) {
  constexpr int kTenants = 6;
  std::mt19937_64 random(1);
  TestQueues queues({.max_batch_requests = 5,
                     .max_batch_bytes = 1000,
                     .max_batch_tokens = 100,
                     .max_tenants = 3});
  std::map<std::pair<std::string, int32_t>, std::vector<size_t>> pushed, taken;
  size_t next = 0;
  for (int step = 0; step < 20'000; ++step) {
    // Floods, now and then, and idle times between them.
    const bool fills = step / 100 % 2 == 0;
    if (random() % 8 < (fills ? 5 : 2)) {
      const int32_t page_tokens = static_cast<int32_t>(random() % 3 * 16);
      const std::string tenant(1, 'a' + static_cast<char>(random() % kTenants));
      Push(queues, {.bytes = next++,
                    .tokens = static_cast<int64_t>(random() % 60),
                    .deadline = kStart + absl::Seconds(1 + random() % 9),
                    .tenant = tenant,
                    .page_tokens = page_tokens});
      if (page_tokens > 0) pushed[{tenant, page_tokens}].push_back(next - 1);
    } else if (const auto batch = queues.TakeBatch(kStart, false)) {
      for (const auto& work : batch->works) {
        if (!work->is_resident()) continue;
        taken[{work->tenant, work->page_tokens}].push_back(work->output_bytes);
      }
    }
  }
  while (const auto batch = queues.TakeBatch(kStart, false)) {
    for (const auto& work : batch->works) {
      if (!work->is_resident()) continue;
      taken[{work->tenant, work->page_tokens}].push_back(work->output_bytes);
    }
  }
  EXPECT_EQ(pushed.size(), kTenants * 2u);
  EXPECT_EQ(taken, pushed);
}

TEST(BatchQueuesTest, RemovesById) {
  TestQueues queues({});
  const WorkId first = Push(queues, {.bytes = 7, .tokens = 1});
  const WorkId second = Push(queues, {.bytes = 5, .tokens = 2});
  EXPECT_LT(first, second);
  const auto work = queues.Remove(first);
  ASSERT_THAT(work, NotNull());
  EXPECT_EQ(work->query_tokens(), 1);
  EXPECT_EQ(queues.bytes(), 5u);
  EXPECT_THAT(queues.Remove(first), IsNull());
  EXPECT_THAT(queues.Remove(12345), IsNull());
  EXPECT_THAT(Take(queues), ElementsAre(2));
  EXPECT_THAT(queues.Remove(second), IsNull());
}

TEST(BatchQueuesTest, TakesAll) {
  TestQueues queues({.max_queue_delay = absl::Seconds(1)});
  for (int i = 0; i < 10; ++i) {
    Push(queues, {.config = 1 + i % 3, .deadline = kStart + absl::Seconds(i)});
  }
  EXPECT_EQ(queues.TakeAll().size(), 10u);
  EXPECT_EQ(queues.size(), 0u);
  EXPECT_EQ(queues.bytes(), 0u);
  EXPECT_EQ(queues.EarliestDeadline(), absl::InfiniteFuture());
  EXPECT_EQ(queues.EarliestReady(), absl::InfiniteFuture());
}

}  // namespace
}  // namespace attention
