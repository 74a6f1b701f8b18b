#include "client/cpp/stream_runner.h"

#include <optional>
#include <string>
#include <utility>

#include "client/cpp/attempt.h"
#include "client/cpp/messages.h"
#include "client/cpp/region_table.h"
#include "client/cpp/stream_attempt.h"

namespace attention {
namespace {

grpc::ByteBuffer StartOf(const AttentionRequest& request, bool resumable) {
  v1::StreamAttentionRequest message;
  v1::StreamAttentionStart& start = *message.mutable_start();
  *start.mutable_request() = MetadataToProto(request);
  start.set_query_byte_size(static_cast<int64_t>(request.query.size_bytes));
  start.set_key_byte_size(static_cast<int64_t>(request.key.size_bytes));
  start.set_value_byte_size(static_cast<int64_t>(request.value.size_bytes));
  if (resumable) start.set_upload_id(RandomToken());
  return Serialize(message);
}

}  // namespace

// One call with its attempts, one after the other. Owns itself: it is deleted
// after `done` has returned.
class StreamRunner::ActiveStream {
 public:
  ActiveStream(StreamRunner* runner, const AttentionRequest& request,
               absl::Duration timeout, Client::Done done)
      : runner_(runner),
        start_(StartOf(request, runner->policy_.max_attempts > 1)),
        plan_(request),
        answer_({.output = request.output_buffer,
                 .log_sum_exp = request.log_sum_exp_buffer,
                 .weights = request.weights_buffer},
                RegionResults(request)),
        deadline_(runner->clock_->Now() + timeout),
        done_(std::move(done)) {}

  void StartAttempt() ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::Duration remaining = deadline_ - runner_->clock_->Now();
    StreamAttempt* attempt = nullptr;
    absl::Status status;
    {
      // Also waits for the attempt before to let go of this object.
      absl::MutexLock lock(&mutex_);
      wait_ = nullptr;
      if (cancelled_) {
        status = absl::CancelledError(kCancelled);
      } else if (remaining <= absl::ZeroDuration()) {
        status = absl::DeadlineExceededError("no time is left for the call");
      } else {
        attempt_ = std::make_unique<StreamAttempt>(
            start_, plan_, /*resumed=*/attempt_count_ > 0, answer_, &memory_,
            [this](StreamAttempt::Outcome outcome) {
              OnAttemptDone(std::move(outcome));
            });
        attempt = attempt_.get();
        ++attempt_count_;
        ++failure_count_;
      }
    }
    if (attempt == nullptr) return Finish(std::move(status));
    // A Cancel from here on reaches the context, started or not.
    const StubPool::Entry& entry = runner_->stubs_.Next();
    attempt->Begin(*entry.stub, remaining, runner_->tenant_, *entry.loop);
  }

  void Cancel() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    if (attempt_ != nullptr) attempt_->Cancel();
    if (wait_ != nullptr) wait_->Cancel();
  }

 private:
  static constexpr char kCancelled[] = "the client was destroyed";

  void OnAttemptDone(StreamAttempt::Outcome outcome)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      // Before Finish: its context refers to the channel; see CallRunner.
      std::unique_ptr<StreamAttempt> attempt;
      absl::MutexLock lock(&mutex_);
      attempt = std::move(attempt_);
    }
    if (outcome.result.ok()) return Finish(std::move(outcome.result));
    if (outcome.received_bytes > received_bytes_) {
      received_bytes_ = outcome.received_bytes;
      failure_count_ = 1;
    }
    const absl::Status& status = outcome.result.status();
    const auto delay =
        RetryDelay(runner_->policy_, failure_count_, CodeForRetry(status),
                   outcome.pushback, RandomFraction());
    // An error now says more than a deadline later.
    if (!delay.has_value() || runner_->clock_->Now() + *delay >= deadline_) {
      return Finish(status);
    }
    {
      absl::MutexLock lock(&mutex_);
      if (!cancelled_) {
        wait_ = runner_->clock_->RunAfter(*delay, [this] { StartAttempt(); });
        return;
      }
    }
    Finish(absl::CancelledError(kCancelled));
  }

  void Finish(absl::StatusOr<AttentionResult> result) {
    result_ = std::move(result);
    // Not where a slice is destroyed, which may be under gRPC's locks.
    const bool waits = memory_.WhenReturned([this] {
      absl::MutexLock lock(&mutex_);
      wait_ = runner_->clock_->RunAfter(absl::ZeroDuration(),
                                        [this] { Deliver(); });
    });
    if (!waits) Deliver();
  }

  void Deliver() ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      absl::MutexLock lock(&mutex_);  // wait_ is set
      wait_ = nullptr;
    }
    std::move(done_)(std::move(result_));
    runner_->Remove(this);
    delete this;
  }

  StreamRunner* const runner_;
  const grpc::ByteBuffer start_;
  const UploadPlan plan_;
  const StreamedAnswer answer_;  // empty
  const absl::Time deadline_;
  Client::Done done_;
  LentMemory memory_;
  // Touched by one attempt at a time.
  int attempt_count_ = 0;
  int failure_count_ = 0;  // since the server last got further
  size_t received_bytes_ = 0;
  absl::StatusOr<AttentionResult> result_;

  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<StreamAttempt> attempt_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<CallClock::Wait> wait_ ABSL_GUARDED_BY(mutex_);
};

StreamRunner::StreamRunner(
    const std::vector<std::shared_ptr<grpc::Channel>>& channels,
    RetryPolicy policy, CallClock* clock, const EventLoops& loops,
    std::string tenant)
    : policy_(policy),
      clock_(clock),
      tenant_(std::move(tenant)),
      stubs_(channels, loops) {}

StreamRunner::~StreamRunner() {
  absl::MutexLock lock(&mutex_);
  for (ActiveStream* stream : active_) stream->Cancel();
  mutex_.Await(absl::Condition(
      +[](absl::flat_hash_set<ActiveStream*>* active) {
        return active->empty();
      },
      &active_));
}

void StreamRunner::Start(const AttentionRequest& request,
                         absl::Duration timeout, Client::Done done) {
  auto* active = new ActiveStream(this, request, timeout, std::move(done));
  {
    absl::MutexLock lock(&mutex_);
    active_.insert(active);
  }
  active->StartAttempt();
}

void StreamRunner::Remove(ActiveStream* stream) {
  absl::MutexLock lock(&mutex_);
  active_.erase(stream);
}

}  // namespace attention
