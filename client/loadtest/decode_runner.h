// Decodes with sessions in a closed loop and measures the answers.
//
// Each client is a model of its own: its sessions begin with a prefix of
// `context` tokens in every layer, then it decodes step after step. A step
// visits the layers one call after the other, as a model has to, and each call
// has an item for each of the client's sessions. When `turn_tokens` tokens are
// decoded the sessions are cut back to their prefix, outside of what is
// measured, so that lengths stay what was asked for.
//
// What is appended and asked lies on tapes, the inputs of a shape with
// `turn_tokens` causal queries at the end of context + turn_tokens keys: an
// answer is right if it has the tape's row.
#ifndef ATTENTION_CLIENT_LOADTEST_DECODE_RUNNER_H_
#define ATTENTION_CLIENT_LOADTEST_DECODE_RUNNER_H_

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/cpp/attention_client.h"
#include "client/cpp/sessions.h"
#include "client/loadtest/decode_plan.h"
#include "client/loadtest/input_set.h"
#include "client/loadtest/load_clock.h"
#include "client/loadtest/load_runner.h"
#include "client/loadtest/load_stats.h"

namespace attention::loadtest {

// Thread-safe. Everything outlives it.
class DecodeRunner {
 public:
  // `tapes` are inputs of a mix of `tape_shape` alone, which is TapeShape's.
  // Clients take turns on `targets`.
  DecodeRunner(const LoadPlan& load, const DecodePlan& plan,
               const RequestShape& tape_shape, const InputSet& tapes,
               std::vector<Client*> targets, LoadClock& clock);
  ~DecodeRunner();

  // Makes the sessions, runs the load, deletes them, and returns. An error is
  // that of making them. Call it once.
  absl::StatusOr<DecodeLoadResult> Run() ABSL_LOCKS_EXCLUDED(mutex_);

  // As LoadRunner's.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);
  LoadRunner::Progress TakeProgress() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class DecodeClient;

  // One call on its way.
  struct Call {
    absl::Duration sent;
    bool measured = false;
    bool verified = false;  // if the tape knows its rows
  };

  // Waits until all clients are ready; false if the run is not to begin.
  bool BeginTogether(absl::Status prepared) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether there is a call to be sent.
  bool Begin(Call& call) ABSL_LOCKS_EXCLUDED(mutex_);
  void End(const Call& call, absl::Duration end,
           const absl::StatusOr<DecodeResult>& result, bool compared,
           const absl::Status& check) ABSL_LOCKS_EXCLUDED(mutex_);
  void RecordStep(absl::Duration begin, absl::Duration end)
      ABSL_LOCKS_EXCLUDED(mutex_);

  const LoadPlan load_;
  const DecodePlan plan_;
  const RequestShape tape_shape_;
  const AnswerSize answer_size_;
  const InputSet& tapes_;
  const std::vector<Client*> targets_;
  LoadClock& clock_;

  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_);
  int preparing_ ABSL_GUARDED_BY(mutex_);
  absl::Status prepared_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Duration start_ ABSL_GUARDED_BY(mutex_);
  absl::Duration measure_from_ ABSL_GUARDED_BY(mutex_);
  absl::Duration last_end_ ABSL_GUARDED_BY(mutex_);
  int64_t outstanding_ ABSL_GUARDED_BY(mutex_) = 0;
  DecodeLoadResult result_ ABSL_GUARDED_BY(mutex_);
  LoadRunner::Progress progress_ ABSL_GUARDED_BY(mutex_);
  absl::Duration progress_from_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attention::loadtest

#endif  // ATTENTION_CLIENT_LOADTEST_DECODE_RUNNER_H_
