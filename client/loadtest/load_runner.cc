#include "client/loadtest/load_runner.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "client/loadtest/answer_check.h"

namespace attention::loadtest {

LoadRunner::LoadRunner(const LoadPlan& plan, const ShapeMix& mix,
                       const InputSet& inputs, RequestSender& sender,
                       LoadClock& clock)
    : plan_(plan),
      mix_(mix),
      inputs_(inputs),
      sender_(sender),
      clock_(clock),
      picker_(mix, plan.seed),
      // Distinct streams: the same numbers must not decide two things.
      schedule_(plan.arrival, plan.rate.value_or(1), plan.seed + 1),
      random_(plan.seed + 2),
      next_input_(mix.size()) {
  result_.shapes.resize(mix.size());
}

LoadResult LoadRunner::Run() {
  {
    absl::MutexLock lock(&mutex_);
    start_ = clock_.Now();
    measure_from_ = start_ + plan_.warmup;
    last_end_ = measure_from_;
    progress_from_ = start_;
    next_arrival_ = start_ + schedule_.Next();
  }
  std::vector<std::thread> threads;
  for (int i = 1; i < plan_.sender_threads; ++i) {
    threads.emplace_back([this] { SendLoop(); });
  }
  SendLoop();
  for (std::thread& thread : threads) thread.join();

  absl::MutexLock lock(&mutex_);
  while (outstanding_ > 0) {
    clock_.WaitUntil(changed_, mutex_, absl::InfiniteDuration());
  }
  result_.elapsed = last_end_ - measure_from_;
  result_.stopped = stopped_;
  return std::move(result_);
}

void LoadRunner::Stop() {
  absl::MutexLock lock(&mutex_);
  stopped_ = true;
  changed_.SignalAll();
}

LoadRunner::Progress LoadRunner::TakeProgress() {
  absl::MutexLock lock(&mutex_);
  const absl::Duration now = clock_.Now();
  Progress progress = std::exchange(progress_, Progress());
  progress.since_start = now - start_;
  progress.interval = now - std::exchange(progress_from_, now);
  progress.warming_up = now < measure_from_;
  progress.outstanding = outstanding_;
  return progress;
}

void LoadRunner::SendLoop() {
  while (true) {
    Call call;
    {
      absl::MutexLock lock(&mutex_);
      std::optional<Call> next = NextCall();
      if (!next.has_value()) return;
      call = *next;
    }
    sender_.Send(call.input->request,
                 [this, call](absl::StatusOr<AttentionResult> result) {
                   Finish(call, std::move(result));
                 });
  }
}

std::optional<LoadRunner::Call> LoadRunner::NextCall() {
  while (true) {
    const absl::Duration now = clock_.Now();
    const absl::Duration due = plan_.rate.has_value() ? next_arrival_ : now;
    if (stopped_ || IsLast(due)) {
      changed_.SignalAll();  // the other senders are to end, too
      return std::nullopt;
    }
    const bool held =
        plan_.max_outstanding > 0 && outstanding_ >= plan_.max_outstanding;
    if (due <= now && !held) return MakeCall(due, now);
    if (due <= now && plan_.rate.has_value() &&
        !std::exchange(next_was_held_, true)) {
      ++result_.bound_hits;
    }
    clock_.WaitUntil(changed_, mutex_,
                     due > now ? due : absl::InfiniteDuration());
  }
}

bool LoadRunner::IsLast(absl::Duration due) const {
  if (plan_.requests > 0) return measured_sent_ >= plan_.requests;
  return due >= measure_from_ + plan_.duration;
}

LoadRunner::Call LoadRunner::MakeCall(absl::Duration due, absl::Duration now) {
  Call call;
  call.shape = picker_.Next();
  const auto& inputs = inputs_.inputs(call.shape);
  call.input = inputs[next_input_[call.shape]++ % inputs.size()].get();
  call.due = due;
  call.measured = due >= measure_from_;
  call.verified = call.measured && std::uniform_real_distribution<double>()(
                                       random_) < plan_.verified_fraction;
  if (call.measured) {
    LoadStats& stats = result_.shapes[call.shape];
    ++stats.sent;
    ++measured_sent_;
    if (plan_.rate.has_value()) stats.send_delay.Record(now - due);
  } else {
    ++result_.warmup_sent;
  }
  ++outstanding_;
  result_.max_outstanding = std::max(result_.max_outstanding, outstanding_);
  if (plan_.rate.has_value()) {
    next_arrival_ = start_ + schedule_.Next();
    next_was_held_ = false;
  }
  return call;
}

void LoadRunner::Finish(const Call& call,
                        absl::StatusOr<AttentionResult> result) {
  const absl::Duration now = clock_.Now();
  absl::Status check;
  if (result.ok() && call.verified) {
    check =
        CheckAnswer(mix_[call.shape].shape, call.input->expectation, *result);
  }
  const absl::Duration latency = now - call.due;

  absl::MutexLock lock(&mutex_);
  if (call.measured) {
    LoadStats& stats = result_.shapes[call.shape];
    if (result.ok()) {
      stats.RecordAnswer(SizeOf(mix_[call.shape].shape), result->timings,
                         latency, call.verified, check);
    } else {
      stats.RecordError(result.status(), latency);
    }
    last_end_ = std::max(last_end_, now);
  }
  ++progress_.finished;
  if (!result.ok() || !check.ok()) ++progress_.failed;
  if (result.ok()) progress_.latency.Record(latency);
  --outstanding_;
  // Under the lock: after the last one, Run returns and the runner may go.
  changed_.SignalAll();
}

}  // namespace attention::loadtest
