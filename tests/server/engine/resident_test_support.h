// Works on keys and values that stay, for tests of devices.
#ifndef ATTENTION_TESTS_SERVER_ENGINE_RESIDENT_TEST_SUPPORT_H_
#define ATTENTION_TESTS_SERVER_ENGINE_RESIDENT_TEST_SUPPORT_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "kernels/mask.h"
#include "kernels/paged_params.h"
#include "server/engine/attention_work.h"
#include "server/engine/kv_cache.h"

namespace attention::test {

// A layer, and all keys and values that its steps have appended or will append,
// in the order in which the steps are made.
struct TestLayer {
  std::shared_ptr<KvLayer> layer;
  std::vector<char> keys;    // [tokens, kv_head_count, head_dim_qk]
  std::vector<char> values;  // [tokens, kv_head_count, head_dim_v]
  int64_t tokens = 0;

  // The same tokens so far in another layer.
  TestLayer ForkedTo(std::shared_ptr<KvLayer> other) const;
};

struct StepSpec {
  TestLayer* layer;
  int64_t append = 0;
  int64_t queries = 0;
  std::optional<int64_t> expected_position = {};
  std::optional<KeyRange> key_range = {};
  // Unless it is OK, the step fails so and appends nothing.
  absl::StatusCode code = absl::StatusCode::kOk;
};

struct ResidentSpec {
  PagedConfig config;
  std::vector<StepSpec> steps;
  bool log_sum_exp = false;
  // The length that is expected, instead of the one that is right.
  std::optional<int64_t> estimated_length = {};
  size_t fragment_bytes = 0;  // 0: whole
  // Of the layers' session.
  int64_t window_left = kUnlimitedWindow;
  // Keys and values are NaN, to spoil whatever touches them.
  bool is_poison = false;
  // The payload's source fails, so that no step begins.
  bool unreadable = false;
  uint64_t seed = 1;
};

// A request as the RPC layer would make it, and what became of it.
class ResidentRequest {
 public:
  explicit ResidentRequest(ResidentSpec spec);

  // Once. This object must outlive the call of `done`.
  std::unique_ptr<AttentionWork> TakeWork() { return std::move(work_); }
  AttentionWork& work() { return *work_; }

  // Waits for `done`, up to a minute.
  const absl::StatusOr<WorkResult>& Wait();
  bool done() const { return done_.HasBeenNotified(); }
  bool payload_released() const { return payload_.expired(); }

  // That the answer is OK, and every step as its code says: within the contract
  // of the reference, or cleared. The steps of the request, and those made
  // before it on the same layers, must have run as they should.
  testing::AssertionResult AnsweredRight();

 private:
  struct Tensors {
    std::vector<char> query, key, value;
  };

  testing::AssertionResult StepIsRight(size_t index);
  testing::AssertionResult StepIsCleared(size_t index);

  const ResidentSpec spec_;
  std::vector<int64_t> lengths_;  // of the layers after each step
  std::vector<WorkSequence> sequences_;
  std::vector<char> query_;
  std::unique_ptr<AttentionWork> work_;
  std::weak_ptr<void> payload_;
  absl::StatusOr<WorkResult> result_;
  absl::Notification done_;
};

// A resident batch of the requests' works.
std::unique_ptr<Batch> MakeResidentBatch(
    uint64_t number, std::vector<std::unique_ptr<ResidentRequest>>& requests);

}  // namespace attention::test

#endif  // ATTENTION_TESTS_SERVER_ENGINE_RESIDENT_TEST_SUPPORT_H_
