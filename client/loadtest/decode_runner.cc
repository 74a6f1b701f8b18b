#include "client/loadtest/decode_runner.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "client/loadtest/decode_client.h"

namespace attention::loadtest {

DecodeRunner::DecodeRunner(const LoadPlan& load, const DecodePlan& plan,
                           const RequestShape& tape_shape,
                           const InputSet& tapes, std::vector<Client*> targets,
                           LoadClock& clock)
    : load_(load),
      plan_(plan),
      tape_shape_(tape_shape),
      answer_size_(SizeOfCall(tape_shape, plan)),
      tapes_(tapes),
      targets_(std::move(targets)),
      clock_(clock),
      random_(load.seed),
      preparing_(plan.client_count) {
  result_.calls.shapes.resize(1);
}

DecodeRunner::~DecodeRunner() = default;

absl::StatusOr<DecodeLoadResult> DecodeRunner::Run() {
  std::vector<std::thread> threads;
  for (int i = 0; i < plan_.client_count; ++i) {
    threads.emplace_back([this, i] {
      DecodeClient client(*this, i);
      if (BeginTogether(client.Prepare())) client.Decode();
      client.DeleteSessions();
    });
  }
  for (std::thread& thread : threads) thread.join();

  absl::MutexLock lock(&mutex_);
  if (!prepared_.ok()) return prepared_;
  result_.calls.elapsed = last_end_ - measure_from_;
  result_.calls.stopped = stopped_;
  return std::move(result_);
}

void DecodeRunner::Stop() {
  absl::MutexLock lock(&mutex_);
  stopped_ = true;
}

LoadRunner::Progress DecodeRunner::TakeProgress() {
  absl::MutexLock lock(&mutex_);
  const absl::Duration now = clock_.Now();
  LoadRunner::Progress progress =
      std::exchange(progress_, LoadRunner::Progress());
  const bool began = preparing_ == 0;
  progress.since_start = began ? now - start_ : absl::ZeroDuration();
  progress.interval =
      began ? now - std::exchange(progress_from_, now) : absl::ZeroDuration();
  progress.warming_up = !began || now < measure_from_;
  progress.outstanding = outstanding_;
  return progress;
}

bool DecodeRunner::BeginTogether(absl::Status prepared) {
  absl::MutexLock lock(&mutex_);
  prepared_.Update(std::move(prepared));
  if (--preparing_ == 0) {
    start_ = clock_.Now();
    measure_from_ = start_ + load_.warmup;
    last_end_ = measure_from_;
    progress_from_ = start_;
    changed_.SignalAll();
  }
  while (preparing_ > 0) {
    clock_.WaitUntil(changed_, mutex_, absl::InfiniteDuration());
  }
  return prepared_.ok();
}

bool DecodeRunner::Begin(Call& call) {
  absl::MutexLock lock(&mutex_);
  LoadStats& stats = result_.calls.shapes[0];
  const absl::Duration now = clock_.Now();
  const bool over = load_.requests > 0 ? stats.sent >= load_.requests
                                       : now >= measure_from_ + load_.duration;
  if (stopped_ || over) return false;
  call.sent = now;
  call.measured = now >= measure_from_;
  call.verified = call.measured && std::uniform_real_distribution<double>()(
                                       random_) < load_.verified_fraction;
  ++(call.measured ? stats.sent : result_.calls.warmup_sent);
  result_.calls.max_outstanding =
      std::max(result_.calls.max_outstanding, ++outstanding_);
  return true;
}

void DecodeRunner::End(const Call& call, absl::Duration end,
                       const absl::StatusOr<DecodeResult>& result,
                       bool compared, const absl::Status& check) {
  absl::MutexLock lock(&mutex_);
  const absl::Duration latency = end - call.sent;
  if (call.measured) {
    LoadStats& stats = result_.calls.shapes[0];
    if (result.ok()) {
      stats.RecordAnswer(answer_size_, result->timings, latency, compared,
                         check);
    } else {
      stats.RecordError(result.status(), latency);
    }
    last_end_ = std::max(last_end_, end);
  }
  --outstanding_;
  ++progress_.finished;
  if (!result.ok() || !check.ok()) ++progress_.failed;
  if (result.ok()) progress_.latency.Record(latency);
}

void DecodeRunner::RecordStep(absl::Duration begin, absl::Duration end) {
  absl::MutexLock lock(&mutex_);
  if (begin < measure_from_) return;
  result_.step_latency.Record(end - begin);
  result_.generated_tokens += plan_.sessions_per_client * plan_.step_tokens;
}

}  // namespace attention::loadtest
