#include "client/cpp/call_runner.h"

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/synchronization/notification.h"
#include "client/cpp/attempt.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/alarm.h"
#include "grpcpp/client_context.h"

namespace attention {
namespace {

class AlarmWait : public CallClock::Wait {
 public:
  AlarmWait(absl::Duration delay, std::function<void()> callback) {
    alarm_.Set(
        std::chrono::system_clock::now() + absl::ToChronoNanoseconds(delay),
        [callback = std::move(callback)](bool) { callback(); });
  }
  void Cancel() override { alarm_.Cancel(); }

 private:
  grpc::Alarm alarm_;
};

class RealClock : public CallClock {
 public:
  absl::Time Now() override { return absl::Now(); }
  std::unique_ptr<Wait> RunAfter(absl::Duration delay,
                                 std::function<void()> callback) override {
    return std::make_unique<AlarmWait>(delay, std::move(callback));
  }
};

}  // namespace

CallClock* CallClock::Real() {
  static CallClock* const clock = new RealClock;
  return clock;
}

absl::Status ToAbslStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()),
                      status.error_message());
  google::rpc::Status details;
  if (details.ParseFromString(status.error_details())) {
    for (const auto& detail : details.details()) {
      result.SetPayload(detail.type_url(), absl::Cord(detail.value()));
    }
  }
  return result;
}

// One call with its attempts, one after the other. Owns itself: it is deleted
// after `done` has returned.
class CallRunner::ActiveCall final : private Event {
 public:
  ActiveCall(CallRunner* runner, Call call, Done done)
      : runner_(runner),
        call_(std::move(call)),
        deadline_(runner->clock_->Now() + call_.timeout),
        done_(std::move(done)) {}

  void StartAttempt() ABSL_LOCKS_EXCLUDED(mutex_) {
    grpc::ClientContext* context = nullptr;
    {
      // Also waits for the attempt before to let go of this object.
      absl::MutexLock lock(&mutex_);
      wait_ = nullptr;
      if (!cancelled_) {
        context_ = std::make_unique<grpc::ClientContext>();
        context = context_.get();
        ++attempt_;
        response_.Clear();
      }
    }
    if (context == nullptr) return Finish(absl::CancelledError(kCancelled));
    const absl::Duration remaining = deadline_ - runner_->clock_->Now();
    if (remaining <= absl::ZeroDuration()) {
      return Finish(
          absl::DeadlineExceededError("no time is left for the call"));
    }
    SetDeadline(remaining, *context);
    SetTenant(runner_->tenant_, *context);
    // A Cancel from here on reaches the context, started or not.
    const StubPool::Entry& entry = runner_->NextStub();
    loop_ = entry.loop;
    loop_->Begin();
    reader_ = entry.stub->PrepareUnaryCall(context, call_.method, call_.request,
                                           loop_->queue());
    reader_->StartCall();
    reader_->Finish(&response_, &status_, Tag());
  }

  void Cancel() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    if (context_ != nullptr) context_->TryCancel();
    if (wait_ != nullptr) wait_->Cancel();
  }

 private:
  static constexpr char kCancelled[] = "the client was destroyed";

  // The attempt is over.
  void OnEvent(bool) override ABSL_LOCKS_EXCLUDED(mutex_) {
    EventLoop::NoteArrival();
    loop_->End();
    std::optional<Pushback> pushback;
    {
      std::unique_ptr<grpc::ClientContext> context;
      {
        absl::MutexLock lock(&mutex_);
        context = std::move(context_);
      }
      pushback = FindPushback(*context);
      reader_ = nullptr;
      // The context goes before Finish: it refers to the channel, and the
      // client may be destroyed once the call is over.
    }
    const grpc::Status status = std::move(status_);
    if (status.ok()) return Finish(std::move(response_));
    const auto delay =
        call_.retry
            ? RetryDelay(runner_->policy_, attempt_,
                         static_cast<absl::StatusCode>(status.error_code()),
                         pushback, RandomFraction())
            : std::nullopt;
    // An error now says more than a deadline later.
    if (!delay.has_value() || runner_->clock_->Now() + *delay >= deadline_) {
      return Finish(ToAbslStatus(status));
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

  void Finish(absl::StatusOr<grpc::ByteBuffer> result) {
    EventLoop::LetOthersPoll();  // what `done` does may take long
    std::move(done_)(std::move(result));
    runner_->Remove(this);
    delete this;
  }

  CallRunner* const runner_;
  const Call call_;
  const absl::Time deadline_;
  Done done_;
  // Touched by one attempt at a time.
  int attempt_ = 0;
  EventLoop* loop_ = nullptr;  // of the attempt
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader_;
  grpc::ByteBuffer response_;
  grpc::Status status_;

  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<grpc::ClientContext> context_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<CallClock::Wait> wait_ ABSL_GUARDED_BY(mutex_);
};

CallRunner::CallRunner(
    const std::vector<std::shared_ptr<grpc::Channel>>& channels,
    RetryPolicy policy, CallClock* clock, const EventLoops& loops,
    std::string tenant)
    : policy_(policy),
      clock_(clock),
      tenant_(std::move(tenant)),
      stubs_(channels, loops) {}

CallRunner::~CallRunner() {
  absl::MutexLock lock(&mutex_);
  for (ActiveCall* call : active_) call->Cancel();
  mutex_.Await(absl::Condition(
      +[](absl::flat_hash_set<ActiveCall*>* active) { return active->empty(); },
      &active_));
}

void CallRunner::Start(Call call, Done done) {
  auto* active = new ActiveCall(this, std::move(call), std::move(done));
  {
    absl::MutexLock lock(&mutex_);
    active_.insert(active);
  }
  active->StartAttempt();
}

absl::StatusOr<grpc::ByteBuffer> CallRunner::Run(Call call) {
  absl::StatusOr<grpc::ByteBuffer> result;
  absl::Notification finished;
  Start(std::move(call), [&](absl::StatusOr<grpc::ByteBuffer> answer) {
    result = std::move(answer);
    finished.Notify();
  });
  finished.WaitForNotification();
  return result;
}

void CallRunner::Remove(ActiveCall* call) {
  absl::MutexLock lock(&mutex_);
  active_.erase(call);
}

}  // namespace attention
