#include "tests/client/loadtest/simulation.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace attention::loadtest {

void Simulation::WaitUntil(absl::CondVar&, absl::Mutex& mutex,
                           absl::Duration moment) {
  if (events_.empty() || events_.begin()->first > moment) {
    // Nothing will ever happen again: do not wait for it.
    if (moment == absl::InfiniteDuration()) {
      std::fputs("deadlock: the runner waits, and no event is left\n", stderr);
      std::abort();
    }
    now_ = std::max(now_, moment);
    return;
  }
  auto next = events_.extract(events_.begin());
  now_ = std::max(now_, next.key());
  mutex.Unlock();
  next.mapped()();
  mutex.Lock();
}

SimulatedServer::SimulatedServer(Simulation& simulation, int worker_count,
                                 absl::Duration service_time, Answer answer)
    : simulation_(simulation),
      service_time_(service_time),
      answer_(std::move(answer)) {
  for (int i = 0; i < worker_count; ++i) {
    workers_.emplace(absl::ZeroDuration(), i);
  }
}

void SimulatedServer::StallFrom(absl::Duration from, absl::Duration length) {
  stall_begin_ = simulation_.Now() + from;
  stall_end_ = stall_begin_ + length;
}

void SimulatedServer::Send(const AttentionRequest& request, Client::Done done) {
  const int64_t index = sent_++;
  auto worker = workers_.extract(workers_.begin());
  absl::Duration start = std::max(simulation_.Now(), worker.key());
  if (start < stall_end_ && start + service_time_ > stall_begin_) {
    start = stall_end_;
  }
  worker.key() = start + service_time_;
  simulation_.At(worker.key(),
                 [this, index, &request, done = std::move(done)]() mutable {
                   done(answer_(index, request));
                 });
  workers_.insert(std::move(worker));
}

}  // namespace attention::loadtest
