#include "server/bench/step_callers.h"

#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/cpp/client_stream.h"
#include "event_loop/event_loops.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/client_callback.h"
#include "grpcpp/support/slice.h"
#include "server/bench/bench_server.h"

namespace attention {
namespace {

constexpr char kMethod[] = "/attention.v1.AttentionService/StreamDecode";

// What both kinds of caller do.
class StepCaller {
 public:
  virtual ~StepCaller() = default;

  // Once more after the caller has stopped.
  void Begin(absl::Time end) {
    absl::MutexLock lock(&mutex_);
    end_ = end;
    stopped_ = false;
    Send();
  }

  absl::StatusOr<std::vector<absl::Duration>> AwaitStop() {
    absl::MutexLock lock(&mutex_, absl::Condition(&stopped_));
    if (!status_.ok()) return status_;
    return std::exchange(latencies_, {});
  }

 protected:
  explicit StepCaller(const StepSize& size) {
    const grpc::Slice slice(std::string(size.request_bytes, 1));
    message_ = grpc::ByteBuffer(&slice, 1);
    context_.AddMetadata(kAnswerBytesKey, absl::StrCat(size.answer_bytes));
  }

  virtual void Read() = 0;
  virtual void Write() = 0;

  // Returns whether it began to read the next message.
  bool HandleRead(bool ok) {
    absl::MutexLock lock(&mutex_);
    if (!ok) {
      Stop(absl::UnavailableError("the stream ended"));
      return false;
    }
    const absl::Time now = absl::Now();
    latencies_.push_back(now - sent_);
    Read();
    if (now >= end_) {
      Stop(absl::OkStatus());
    } else {
      Send();
    }
    return true;
  }

  void HandleWritten(bool ok) {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (ok && std::exchange(is_due_, false)) StartSending();
  }

  void HandleDone() {
    absl::MutexLock lock(&mutex_);
    done_ = true;
  }

  // For destructors of those who implement Read and Write.
  void Cancel() {
    context_.TryCancel();
    absl::MutexLock lock(&mutex_, absl::Condition(&done_));
  }

  grpc::ClientContext context_;
  grpc::ByteBuffer message_;
  grpc::ByteBuffer answer_;

 private:
  void Send() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    sent_ = absl::Now();
    // The answer may be there before it is known that the message has gone.
    if (writing_) {
      is_due_ = true;
    } else {
      StartSending();
    }
  }

  void StartSending() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    writing_ = true;
    Write();
  }

  void Stop(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    status_ = std::move(status);
    stopped_ = true;
  }

  absl::Mutex mutex_;
  absl::Time end_ ABSL_GUARDED_BY(mutex_);
  absl::Time sent_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_due_ ABSL_GUARDED_BY(mutex_) = false;  // a message
  bool stopped_ ABSL_GUARDED_BY(mutex_) = true;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::Duration> latencies_ ABSL_GUARDED_BY(mutex_);
};

class QueueCaller final : public StepCaller, private ClientStream {
 public:
  QueueCaller(grpc::GenericStub& stub, EventLoop& loop, const StepSize& size)
      : StepCaller(size) {
    StartCall(stub, kMethod, context_, loop);
    Read();
  }
  ~QueueCaller() override { Cancel(); }

 private:
  void Read() override { StartRead(&answer_); }
  void Write() override { StartWrite(message_); }
  bool OnReadDone(bool ok) override { return HandleRead(ok); }
  void OnWriteDone(bool ok) override { HandleWritten(ok); }
  void OnDone(const grpc::Status&) override { HandleDone(); }
};

class CallbackCaller final
    : public StepCaller,
      private grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  CallbackCaller(grpc::GenericStub& stub, const StepSize& size)
      : StepCaller(size) {
    stub.PrepareBidiStreamingCall(&context_, kMethod, grpc::StubOptions(),
                                  this);
    Read();
    AddHold();  // messages are sent from outside of its callbacks
    StartCall();
  }
  ~CallbackCaller() override {
    RemoveHold();
    Cancel();
  }

 private:
  void Read() override { StartRead(&answer_); }
  void Write() override { StartWrite(&message_); }
  void OnReadDone(bool ok) override { HandleRead(ok); }
  void OnWriteDone(bool ok) override { HandleWritten(ok); }
  void OnDone(const grpc::Status&) override { HandleDone(); }
};

class AllCallers final : public StepCallers {
 public:
  AllCallers(const std::vector<std::shared_ptr<grpc::Channel>>& channels,
             int count, const StepSize& size, bool callbacks,
             absl::Duration poll_time) {
    if (!callbacks) loops_ = EventLoops::Shared(poll_time);
    for (const auto& channel : channels) {
      stubs_.push_back(std::make_unique<grpc::GenericStub>(channel));
    }
    for (int i = 0; i < count; ++i) {
      const size_t channel = i % stubs_.size();
      grpc::GenericStub& stub = *stubs_[channel];
      if (callbacks) {
        callers_.push_back(std::make_unique<CallbackCaller>(stub, size));
      } else {
        callers_.push_back(
            std::make_unique<QueueCaller>(stub, loops_->at(channel), size));
      }
    }
  }

  absl::StatusOr<std::vector<absl::Duration>> CallFor(
      absl::Duration duration) override {
    const absl::Time end = absl::Now() + duration;
    for (const auto& caller : callers_) caller->Begin(end);
    std::vector<absl::Duration> latencies;
    for (const auto& caller : callers_) {
      auto own = caller->AwaitStop();
      if (!own.ok()) return own.status();
      latencies.insert(latencies.end(), own->begin(), own->end());
    }
    return latencies;
  }

 private:
  std::shared_ptr<EventLoops> loops_;
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs_;
  std::vector<std::unique_ptr<StepCaller>> callers_;
};

}  // namespace

std::unique_ptr<StepCallers> StepCallers::Create(
    const std::vector<std::shared_ptr<grpc::Channel>>& channels, int count,
    const StepSize& size, bool callbacks, absl::Duration poll_time) {
  return std::make_unique<AllCallers>(channels, count, size, callbacks,
                                      poll_time);
}

}  // namespace attention
