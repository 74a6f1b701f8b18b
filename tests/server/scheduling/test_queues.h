// Queues for puppet devices, and works to put into them.
#ifndef ATTENTION_TESTS_SERVER_SCHEDULING_TEST_QUEUES_H_
#define ATTENTION_TESTS_SERVER_SCHEDULING_TEST_QUEUES_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "server/scheduling/batch_queues.h"
#include "server/scheduling/cost_model.h"
#include "tests/server/scheduling/probe.h"

namespace attention {

inline const absl::Time kStart = absl::FromUnixSeconds(1000);

inline std::vector<int64_t> Tokens(const BatchQueues::Works& works) {
  std::vector<int64_t> tokens;
  for (const auto& work : works) tokens.push_back(work->query_tokens());
  return tokens;
}

// Queues for devices of which nothing is known.
struct TestDevices {
  static constexpr size_t kCount = 3;
  CostModel model{
      std::vector<DeviceDescription>(kCount, {.backend = "puppet"})};
};
class TestQueues : public TestDevices, public BatchQueues {
 public:
  explicit TestQueues(const Scheduler::Options& options)
      : BatchQueues(options, model) {}

  std::unique_ptr<Batch> TakeBatch(absl::Time now, bool draining,
                                   size_t device = 0) {
    return BatchQueues::TakeBatch(device, now, draining).batch;
  }
  absl::Time EarliestReady(size_t device = 0) const {
    return BatchQueues::EarliestReady(device);
  }
};

inline WorkId Push(BatchQueues& queues, const WorkSpec& spec,
            absl::Time arrival = kStart) {
  auto work = MakeWork(spec);
  work->arrival_time = arrival;
  const WorkCost cost = CostOf(*work);
  return queues.Push(std::move(work), cost);
}

// Tokens of the next batch; empty when there is none.
inline std::vector<int64_t> Take(TestQueues& queues, absl::Time now = kStart,
                                 bool draining = false, size_t device = 0) {
  const auto batch = queues.TakeBatch(now, draining, device);
  return batch == nullptr ? std::vector<int64_t>() : Tokens(batch->works);
}

}  // namespace attention

#endif  // ATTENTION_TESTS_SERVER_SCHEDULING_TEST_QUEUES_H_
