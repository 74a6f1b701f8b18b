#include "server/scheduling/batch_queues.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <vector>

#include "tests/server/scheduling/probe.h"

namespace attention {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::IsNull;
using ::testing::NotNull;

const absl::Time kStart = absl::FromUnixSeconds(1000);

std::vector<int64_t> Tokens(const BatchQueues::Works& works) {
  std::vector<int64_t> tokens;
  for (const auto& work : works) tokens.push_back(work->query_tokens());
  return tokens;
}

WorkId Push(BatchQueues& queues, const WorkSpec& spec,
            absl::Time arrival = kStart) {
  auto work = MakeWork(spec);
  work->arrival_time = arrival;
  return queues.Push(std::move(work));
}

// Tokens of the next batch; empty when there is none.
std::vector<int64_t> Take(BatchQueues& queues, absl::Time now = kStart,
                          bool draining = false) {
  const auto batch = queues.TakeBatch(now, draining);
  return batch == nullptr ? std::vector<int64_t>() : Tokens(batch->works);
}

TEST(BatchQueuesTest, TakesOneConfigurationInOrderOfArrival) {
  BatchQueues queues({});
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
  BatchQueues queues({.max_batch_requests = 4});
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
  const auto fill = [](BatchQueues& queues) {
    for (int i = 0; i < 6; ++i) Push(queues, {.bytes = 10, .tokens = 3});
  };
  BatchQueues by_requests({.max_batch_requests = 2});
  BatchQueues by_bytes({.max_batch_bytes = 39});
  BatchQueues by_exact_bytes({.max_batch_bytes = 40});
  BatchQueues by_tokens({.max_batch_tokens = 15});
  for (BatchQueues* queues :
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
  BatchQueues queues({.max_batch_bytes = 100, .max_batch_tokens = 1000});
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
  BatchQueues queues({.max_batch_requests = 1});
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
  BatchQueues queues({.max_batch_requests = 3, .max_queue_delay = delay});
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
  BatchQueues queues(
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
  BatchQueues queues({.max_queue_delay = absl::Seconds(1)});
  Push(queues, {.tokens = 1});
  EXPECT_THAT(Take(queues), IsEmpty());
  const auto batch = queues.TakeBatch(kStart, true);
  ASSERT_THAT(batch, NotNull());
  EXPECT_EQ(batch->flush_reason, FlushReason::kDrain);
}

TEST(BatchQueuesTest, TakesExpiredWorkEarliestFirst) {
  BatchQueues queues({});
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
  EXPECT_THAT(Take(queues), ElementsAre(2, 4));
  EXPECT_EQ(queues.EarliestDeadline(), absl::InfiniteFuture());
}

TEST(BatchQueuesTest, RemovesById) {
  BatchQueues queues({});
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
  BatchQueues queues({.max_queue_delay = absl::Seconds(1)});
  for (int i = 0; i < 10; ++i) {
    Push(queues, {.config = 1 + i % 3, .deadline = kStart + absl::Seconds(i)});
  }
  EXPECT_EQ(queues.TakeAll().size(), 10u);
  EXPECT_EQ(queues.size(), 0u);
  EXPECT_EQ(queues.bytes(), 0u);
  EXPECT_EQ(queues.EarliestDeadline(), absl::InfiniteFuture());
  EXPECT_EQ(queues.EarliestReady(), absl::InfiniteFuture());
}

// The same random operations on the queues and on a model of plain vectors that
// is slow and obviously right.
class Model {
 public:
  struct Item {
    WorkId id;
    WorkSpec spec;
  };

  explicit Model(int max_requests, size_t max_bytes, int64_t max_tokens)
      : max_requests_(max_requests),
        max_bytes_(max_bytes),
        max_tokens_(max_tokens) {}

  void Push(WorkId id, const WorkSpec& spec) {
    if (queues_[spec.config].empty()) turns_.push_back(spec.config);
    queues_[spec.config].push_back({id, spec});
  }

  bool Remove(WorkId id) {
    for (auto& [config, queue] : queues_) {
      const auto it = std::find_if(queue.begin(), queue.end(),
                                   [id](const Item& i) { return i.id == id; });
      if (it == queue.end()) continue;
      queue.erase(it);
      if (queue.empty()) std::erase(turns_, config);
      return true;
    }
    return false;
  }

  std::vector<int64_t> TakeBatch() {
    if (turns_.empty()) return {};
    const int config = turns_.front();
    turns_.pop_front();
    auto& queue = queues_[config];
    std::vector<int64_t> batch;
    size_t bytes = 0;
    int64_t tokens = 0;
    while (!queue.empty()) {
      const WorkSpec& next = queue.front().spec;
      if (!batch.empty() &&
          (batch.size() + 1 > static_cast<size_t>(max_requests_) ||
           bytes + next.bytes > max_bytes_ ||
           tokens + next.tokens > max_tokens_)) {
        break;
      }
      bytes += next.bytes;
      tokens += next.tokens;
      batch.push_back(next.tokens);
      queue.erase(queue.begin());
    }
    if (!queue.empty()) turns_.push_back(config);
    return batch;
  }

  std::vector<WorkId> Expired(absl::Time now) const {
    std::vector<WorkId> ids;
    for (const auto& [config, queue] : queues_) {
      for (const Item& item : queue) {
        if (item.spec.deadline <= now) ids.push_back(item.id);
      }
    }
    return ids;
  }

  size_t size() const {
    size_t size = 0;
    for (const auto& [config, queue] : queues_) size += queue.size();
    return size;
  }

  size_t bytes() const {
    size_t bytes = 0;
    for (const auto& [config, queue] : queues_) {
      for (const Item& item : queue) bytes += item.spec.bytes;
    }
    return bytes;
  }

 private:
  const int max_requests_;
  const size_t max_bytes_;
  const int64_t max_tokens_;
  std::map<int, std::vector<Item>> queues_;
  std::deque<int> turns_;
};

TEST(BatchQueuesTest, AgreesWithAModelOverRandomOperations) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto below = [&random](uint64_t bound) { return random() % bound; };
    const int max_requests = 1 + static_cast<int>(below(6));
    BatchQueues queues({.max_batch_requests = max_requests,
                        .max_batch_bytes = 50,
                        .max_batch_tokens = 40});
    Model model(max_requests, 50, 40);
    absl::Time now = kStart;
    WorkId last_id = 0;
    for (int step = 0; step < 1000; ++step) {
      switch (below(4)) {
        case 0:
        case 1: {
          const WorkSpec spec = {
              .config = 1 + static_cast<int>(below(5)),
              .bytes = below(60),
              .tokens = static_cast<int64_t>(below(45)),
              .deadline = below(3) == 0 ? absl::InfiniteFuture()
                                        : now + absl::Seconds(below(30))};
          last_id = Push(queues, spec, now);
          model.Push(last_id, spec);
          break;
        }
        case 2: {
          const WorkId id = 1 + below(last_id + 1);
          EXPECT_EQ(queues.Remove(id) != nullptr, model.Remove(id));
          break;
        }
        case 3: {
          now += absl::Seconds(below(3));
          const std::vector<WorkId> expired = model.Expired(now);
          ASSERT_EQ(queues.TakeExpired(now).size(), expired.size());
          for (WorkId id : expired) EXPECT_TRUE(model.Remove(id));
          ASSERT_EQ(Take(queues, now), model.TakeBatch());
          break;
        }
      }
      ASSERT_EQ(queues.size(), model.size());
      ASSERT_EQ(queues.bytes(), model.bytes());
    }
  }
}

}  // namespace
}  // namespace attention
