// Sends requests in a closed or an open loop and measures the answers.
//
// Closed loop: `concurrency` requests are outstanding at any time; the next is
// sent when one returns. Says what the server can do; a server that stalls is
// simply asked less.
//
// Open loop: requests are due at moments of a schedule that does not depend on
// the answers, as with independent callers, and latency counts from the moment
// a request was due, whenever it could really be sent. So a stall of the server
// shows in every request that was due meanwhile (no coordinated omission). A
// request that is due while max_outstanding are on their way is sent as soon as
// one returns; none is left out, so the run of an overloaded server takes
// longer than `duration`.
//
// The warm-up is the first part of the same stream of requests; those due in it
// are not measured.
#ifndef ATTENTION_CLIENT_LOADTEST_LOAD_RUNNER_H_
#define ATTENTION_CLIENT_LOADTEST_LOAD_RUNNER_H_

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/loadtest/arrival_schedule.h"
#include "client/loadtest/input_set.h"
#include "client/loadtest/load_clock.h"
#include "client/loadtest/load_stats.h"
#include "client/loadtest/request_sender.h"
#include "client/loadtest/shape_mix.h"

namespace attention::loadtest {

struct LoadPlan {
  // Requests per second of an open loop; unset: closed loop.
  std::optional<double> rate;
  Arrival arrival = Arrival::kPoisson;
  // The closed loop's concurrency, or the open loop's bound (0: none).
  int64_t max_outstanding = 1;
  absl::Duration warmup;
  // Time in which measured requests are due...
  absl::Duration duration = absl::Seconds(10);
  // ... or, if above 0, their number instead.
  int64_t requests = 0;
  // Threads that copy requests into the transport, the caller's included.
  int sender_threads = 1;
  // Part of the answers that is compared with the reference, 0...1.
  double verified_fraction = 0;
  uint64_t seed = 1;
};

// Thread-safe. The mix, inputs, sender and clock must outlive it.
class LoadRunner {
 public:
  LoadRunner(const LoadPlan& plan, const ShapeMix& mix, const InputSet& inputs,
             RequestSender& sender, LoadClock& clock);

  // Runs the load and returns when every request has ended. Call it once.
  LoadResult Run();

  // Makes Run send nothing more; it still waits for what is outstanding.
  void Stop();

  // What happened since the previous call, warm-up included.
  struct Progress {
    absl::Duration since_start;
    absl::Duration interval;
    bool warming_up = false;
    int64_t outstanding = 0;
    int64_t finished = 0;      // in the interval, errors included
    int64_t failed = 0;        // in the interval: errors and mismatches
    LatencyHistogram latency;  // of the interval's answers
  };
  Progress TakeProgress();

 private:
  // One request on its way.
  struct Call {
    size_t shape = 0;
    const Input* input = nullptr;
    absl::Duration due;
    bool measured = false;
    bool verified = false;
  };

  void SendLoop();
  // Waits until the next request may be sent; unset when there is none.
  std::optional<Call> NextCall() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsLast(absl::Duration due) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Call MakeCall(absl::Duration due, absl::Duration now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Finish(const Call& call, absl::StatusOr<AttentionResult> result);

  const LoadPlan plan_;
  const ShapeMix& mix_;
  const InputSet& inputs_;
  RequestSender& sender_;
  LoadClock& clock_;

  absl::Mutex mutex_;
  absl::CondVar changed_;  // a request ended, or Stop
  ShapePicker picker_ ABSL_GUARDED_BY(mutex_);
  ArrivalSchedule schedule_ ABSL_GUARDED_BY(mutex_);
  std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_);
  std::vector<size_t> next_input_ ABSL_GUARDED_BY(mutex_);  // per shape
  absl::Duration start_ ABSL_GUARDED_BY(mutex_);
  absl::Duration measure_from_ ABSL_GUARDED_BY(mutex_);
  absl::Duration next_arrival_ ABSL_GUARDED_BY(mutex_);
  bool next_was_held_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t outstanding_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t measured_sent_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Duration last_end_ ABSL_GUARDED_BY(mutex_);
  LoadResult result_ ABSL_GUARDED_BY(mutex_);
  Progress progress_ ABSL_GUARDED_BY(mutex_);
  absl::Duration progress_from_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attention::loadtest

#endif  // ATTENTION_CLIENT_LOADTEST_LOAD_RUNNER_H_
