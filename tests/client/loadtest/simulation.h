// A simulated world for the load runner: time passes only when the runner
// waits, and then events happen in order.
#ifndef ATTENTION_TESTS_CLIENT_LOADTEST_SIMULATION_H_
#define ATTENTION_TESTS_CLIENT_LOADTEST_SIMULATION_H_

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "client/loadtest/load_clock.h"
#include "client/loadtest/request_sender.h"

namespace attention::loadtest {

// For a runner with one sender thread. Not thread-safe.
class Simulation : public LoadClock {
 public:
  absl::Duration Now() override { return now_; }

  // Lets the next event before `moment` happen, or moves to `moment`.
  void WaitUntil(absl::CondVar& condition, absl::Mutex& mutex,
                 absl::Duration moment) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  void At(absl::Duration moment, absl::AnyInvocable<void()> event) {
    events_.emplace(moment, std::move(event));
  }

 private:
  absl::Duration now_ = absl::Hours(1);  // the runner must not assume 0
  std::multimap<absl::Duration, absl::AnyInvocable<void()>> events_;
};

// A server with `worker_count` workers and a queue in front of them.
class SimulatedServer : public RequestSender {
 public:
  // What the server answers to the `index`-th request.
  using Answer = std::function<absl::StatusOr<AttentionResult>(
      int64_t index, const AttentionRequest& request)>;

  SimulatedServer(Simulation& simulation, int worker_count,
                  absl::Duration service_time, Answer answer);

  // No worker does anything from now + `from` until `length` later.
  void StallFrom(absl::Duration from, absl::Duration length);

  void Send(const AttentionRequest& request, Client::Done done) override;

  int64_t sent() const { return sent_; }

 private:
  Simulation& simulation_;
  const absl::Duration service_time_;
  const Answer answer_;
  std::multimap<absl::Duration, int> workers_;  // by when they are free
  absl::Duration stall_begin_ = absl::InfiniteDuration();
  absl::Duration stall_end_ = absl::InfiniteDuration();
  int64_t sent_ = 0;
};

}  // namespace attention::loadtest

#endif  // ATTENTION_TESTS_CLIENT_LOADTEST_SIMULATION_H_
