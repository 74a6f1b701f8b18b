// Who gets how much of the devices, by predicted time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/server/scheduling/test_queues.h"

namespace attention {
namespace {

// Takes batches and adds up what each tenant, or each configuration, was given.
class FairnessTest : public testing::Test {
 protected:
  static constexpr int kRequests = 8;

  absl::Duration Added(const AttentionWork& work) const {
    return queues_.model.Added(0, CostClassOf(work.config), CostOf(work));
  }

  // The batch's predicted time.
  absl::Duration Run(std::map<std::string, absl::Duration>& by_tenant,
                     std::map<int, absl::Duration>& by_config) {
    const auto batch = queues_.TakeBatch(kStart, false);
    const absl::Duration launch =
        queues_.model.Launch(0, CostClassOf(batch->config));
    absl::Duration total = launch;
    for (const auto& work : batch->works) {
      const absl::Duration charge =
          Added(*work) + launch / static_cast<int64_t>(batch->works.size());
      by_tenant[work->tenant] += charge;
      by_config[work->config.head_dim_qk] += charge;
      total += Added(*work);
    }
    return total;
  }

  TestQueues queues_{{.max_batch_requests = kRequests}};
};

// Tenants whose works cost between 1 us and 1 ms, none of which ever runs out of
// work, each with configurations of its own.
TEST_F(FairnessTest, TenantsGetEqualTimeWhateverTheirWorksCost) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const int tenants = 2 + static_cast<int>(random() % 5);
    std::map<std::string, size_t> waiting;
    std::map<std::string, absl::Duration> time;
    std::map<int, absl::Duration> by_config;
    absl::Duration longest;
    for (int step = 0; step < 3000; ++step) {
      for (int t = 0; t < tenants; ++t) {
        // A large cost for some, many configurations for others.
        for (int c = 0; c < 1 + t % 3; ++c) {
          const std::string name = absl::StrCat(t);
          while (waiting[absl::StrCat(t, ",", c)] < 2 * kRequests) {
            ++waiting[absl::StrCat(t, ",", c)];
            Push(queues_, {.config = 1 + 10 * t + c,
                           .bytes = (random() % 1000) * (t + 1) * 1000,
                           .tenant = name});
          }
        }
      }
      const auto before = by_config;
      const size_t size = queues_.size();
      longest = std::max(longest, Run(time, by_config));
      for (const auto& [config, total] : by_config) {
        const auto it = before.find(config);
        if (it != before.end() && it->second == total) continue;
        waiting[absl::StrCat((config - 1) / 10, ",", (config - 1) % 10)] -=
            size - queues_.size();
      }
    }
    const auto [least, most] = std::minmax_element(
        time.begin(), time.end(),
        [](const auto& a, const auto& b) { return a.second < b.second; });
    ASSERT_EQ(time.size(), static_cast<size_t>(tenants));
    EXPECT_LT(most->second - least->second,
              2 * longest + kTurnQuantum * tenants);
    // So do the configurations of a tenant.
    for (int t = 0; t < tenants; ++t) {
      absl::Duration low = absl::InfiniteDuration(), high;
      for (int c = 0; c < 1 + t % 3; ++c) {
        low = std::min(low, by_config[1 + 10 * t + c]);
        high = std::max(high, by_config[1 + 10 * t + c]);
      }
      EXPECT_LT(high - low, 2 * longest + 3 * kTurnQuantum);
    }
    queues_.TakeAll();
  }
}

// One tenant floods, others have now and then a work. Each waits for at most one
// batch of every other tenant, the one that runs included.
TEST_F(FairnessTest, AFloodDelaysOthersByOneTurn) {
  for (const bool same_config : {true, false}) {
    std::mt19937_64 random(7);
    absl::Duration longest, worst;
    const auto flood = [&] {
      while (queues_.size() < 500) {
        Push(queues_, {.bytes = 1'000'000 * (1 + random() % 50),
                       .tenant = "flood"});
      }
    };
    for (int round = 0; round < 200; ++round) {
      flood();
      std::map<std::string, absl::Duration> time;
      std::map<int, absl::Duration> by_config;
      // The rest of a batch that has just started.
      absl::Duration wait = Run(time, by_config);
      longest = std::max(longest, wait);
      flood();
      Push(queues_, {.config = same_config ? 1 : 2,
                     .bytes = 1000,
                     .tenant = "rare"});
      time.clear();
      while (time.count("rare") == 0) {
        const absl::Duration batch = Run(time, by_config);
        longest = std::max(longest, batch);
        if (time.count("rare") == 0) wait += batch;
      }
      worst = std::max(worst, wait);
    }
    EXPECT_LE(worst, 2 * longest);
    queues_.TakeAll();
  }
}

TEST_F(FairnessTest, ManyTenantsOfOneCallEachDoNotStarveAnyone) {
  for (int i = 0; i < 100; ++i) {
    Push(queues_, {.bytes = 10'000'000, .tenant = "steady"});
  }
  int batches = 0;
  int next = 0;
  std::map<std::string, absl::Duration> time;
  std::map<int, absl::Duration> by_config;
  // All of one configuration, which the steady tenant does not share, and more
  // of them all the time.
  while (time["steady"] < 5 * absl::Milliseconds(8)) {
    for (int i = 0; i < kRequests; ++i) {
      Push(queues_, {.config = 2,
                     .bytes = 10'000'000,
                     .tenant = absl::StrCat("fleeting ", next++ % 40)});
    }
    Run(time, by_config);
    ASSERT_LT(++batches, 1000);
  }
}

}  // namespace
}  // namespace attention
