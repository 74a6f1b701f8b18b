// Works with random tensors, for tests of devices.
#ifndef ATTENTION_TESTS_SERVER_ENGINE_ENGINE_TEST_SUPPORT_H_
#define ATTENTION_TESTS_SERVER_ENGINE_ENGINE_TEST_SUPPORT_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "kernels/attention_params.h"
#include "server/engine/attention_work.h"
#include "server/engine/device.h"

namespace attention::test {

struct WorkSpec {
  HeadConfig config;
  // (M, N) of each sequence.
  std::vector<std::pair<int64_t, int64_t>> lengths;
  // Lengths of the padded [B, S, H, D] tensors; 0: sequences lie one after the
  // other without padding.
  int64_t padded_query_length = 0;
  int64_t padded_key_length = 0;
  // Tensors are [H, S, D] per sequence instead of [S, H, D]; without padding.
  bool heads_first = false;
  bool log_sum_exp = false;
  bool weights = false;
  // How the payloads arrive: cut after every `fragment_bytes` (0: whole), and
  // each fragment `misalignment` bytes off a 64-byte boundary.
  size_t fragment_bytes = 0;
  size_t misalignment = 0;
  // Payloads come from a PayloadSource; one that fails after so many bytes.
  std::optional<size_t> source_bytes;
  std::optional<double> scale;
  int64_t window_left = kUnlimitedWindow;
  int64_t window_right = kUnlimitedWindow;
  uint64_t seed = 1;
  // All of query, key and value is NaN.
  bool all_nan = false;
  bool scales = false;  // drawn for each head; kFloat8E4M3 only
};

// A request as the RPC layer would make it, and what became of it.
class TestRequest {
 public:
  explicit TestRequest(WorkSpec spec);

  // May be called once. This object must outlive the call of `done`. Results
  // are looked for where the work's targets are then, unless they come in
  // blocks.
  std::unique_ptr<AttentionWork> TakeWork();
  AttentionWork& work() { return *work_; }

  // Waits for `done`, up to a minute.
  const absl::StatusOr<WorkResult>& Wait();
  bool done() const { return done_.HasBeenNotified(); }
  int done_count() const { return done_count_; }
  // Whether the device has let go of the payloads.
  bool payload_released() const { return payload_.expired(); }

  // That the answer is OK and within the contract of the reference, with
  // padding cleared. Takes OK for granted of nothing.
  testing::AssertionResult AnsweredRight();
  // All result bytes, one after the other.
  std::string ResultBits();

 private:
  struct Tensors;  // what the payload_owner keeps alive

  // Of a result, in its block or at its target.
  const char* Data(const Block& block, const DirectMemory& target) const;
  const char* OutputData() const;
  const float* LogSumExpData() const;
  const char* WeightsData() const;
  void PlanSequences();
  DataType output_type() const { return OutputType(spec_.config.data_type); }
  testing::AssertionResult SequenceIsRight(const WorkSequence& sequence);
  testing::AssertionResult PaddingIsCleared();

  const WorkSpec spec_;
  std::vector<char> query_, key_, value_;  // for the reference
  HeadScales scales_;
  std::vector<WorkSequence> sequences_;
  std::unique_ptr<AttentionWork> work_;
  std::weak_ptr<void> payload_;
  size_t output_bytes_ = 0, log_sum_exp_bytes_ = 0, weights_bytes_ = 0;
  DirectMemory output_target_, log_sum_exp_target_, weights_target_;
  absl::StatusOr<WorkResult> result_;
  int done_count_ = 0;
  absl::Notification done_;
};

// A batch of the requests' works, all of the first one's configuration.
std::unique_ptr<Batch> MakeBatch(
    std::vector<std::unique_ptr<TestRequest>>& requests);

// Runs the batch and waits until all its answers are given and its slot is free.
void RunAndWait(Device& device, std::unique_ptr<Batch> batch);

}  // namespace attention::test

#endif  // ATTENTION_TESTS_SERVER_ENGINE_ENGINE_TEST_SUPPORT_H_
