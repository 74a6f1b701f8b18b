#include "client/cpp/tagged_stream.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attention/v1/attention.pb.h"
#include "client/cpp/attempt.h"
#include "client/cpp/messages.h"
#include "client/cpp/session_messages.h"

namespace attention {

template <typename Response>
TaggedStream<Response>::TaggedStream(CallRunner& runner,
                                     const std::string& method,
                                     absl::Duration timeout) {
  SetDeadline(timeout, context_);
  SetTenant(runner.tenant(), context_);
  const StubPool::Entry& entry = runner.NextStub();
  StartCall(*entry.stub, method, context_, *entry.loop);
  {
    absl::MutexLock lock(&mutex_);
    load_.emplace(entry.loop);
  }
  StartRead(&read_);
}

template <typename Response>
TaggedStream<Response>::~TaggedStream() {
  context_.TryCancel();
  absl::MutexLock lock(&mutex_);
  closing_ = true;
  mutex_.Await(absl::Condition(&done_));
}

template <typename Response>
void TaggedStream<Response>::Send(int64_t tag, MakeMessage make_message,
                                  Done done) {
  absl::Status refusal;
  {
    absl::MutexLock lock(&mutex_);
    refusal = Refusal();
    if (refusal.ok()) {
      absl::StatusOr<grpc::ByteBuffer> message = make_message();
      if (message.ok()) {
        pending_.emplace(tag, std::move(done));
        load_->MessageBegins();
        writes_.push_back(*std::move(message));
        if (!writing_) WriteNext();
        return;
      }
      refusal = message.status();
    }
  }
  std::move(done)(std::move(refusal));
}

template <typename Response>
absl::Status TaggedStream<Response>::Refusal() const {
  if (broken_) {
    if (!done_) return absl::UnavailableError("the stream broke");
    return status_.ok() ? absl::UnavailableError("the stream ended") : status_;
  }
  return closing_ ? absl::FailedPreconditionError("the stream is closed")
                  : absl::OkStatus();
}

template <typename Response>
bool TaggedStream<Response>::IsOpen() const {
  absl::MutexLock lock(&mutex_);
  return Refusal().ok();
}

template <typename Response>
absl::Status TaggedStream<Response>::Close() {
  absl::MutexLock lock(&mutex_);
  if (!std::exchange(closing_, true) && !broken_ && !writing_) WriteNext();
  mutex_.Await(absl::Condition(&done_));
  return status_;
}

template <typename Response>
void TaggedStream<Response>::WriteNext() {
  if (!writes_.empty()) {
    writing_ = true;
    StartWrite(writes_.front(), writes_.size() > 1);
    writes_.pop_front();
  } else if (closing_ && !std::exchange(closed_, true)) {
    StartWritesDone();
  }
}

template <typename Response>
void TaggedStream<Response>::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  writing_ = false;
  if (ok && !broken_) WriteNext();  // otherwise OnDone says why
}

template <typename Response>
bool TaggedStream<Response>::OnReadDone(bool ok) {
  absl::Status error;
  if (ok) {
    error = Deliver();
    if (error.ok()) {
      StartRead(&read_);
      return true;
    }
    context_.TryCancel();
  }
  absl::MutexLock lock(&mutex_);
  error_ = std::move(error);
  broken_ = true;
  return false;
}

template <typename Response>
absl::Status TaggedStream<Response>::Deliver() {
  grpc::ByteBuffer message;
  message.Swap(&read_);
  absl::StatusOr<Response> response = Response();
  if (absl::Status s = Parse(std::move(message), &*response); !s.ok()) return s;
  Done done;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = pending_.find(response->tag());
    if (found == pending_.end()) {
      return absl::InternalError(
          absl::StrCat("the server answered the tag ", response->tag(),
                       ", which is of no message under way"));
    }
    done = std::move(found->second);
    pending_.erase(found);
    load_->MessageEnds();
  }
  if (response->has_error()) response = StatusOf(response->error());
  EventLoop::LetOthersPoll();  // what `done` does may take long
  std::move(done)(std::move(response));
  return absl::OkStatus();
}

template <typename Response>
void TaggedStream<Response>::OnDone(const grpc::Status& status) {
  std::vector<Done> unanswered;
  absl::Status ending;
  {
    absl::MutexLock lock(&mutex_);
    load_.reset();
    broken_ = true;
    status_ = error_.ok() ? ToAbslStatus(status) : error_;
    for (auto& [tag, done] : pending_) unanswered.push_back(std::move(done));
    if (status_.ok() && !pending_.empty()) {
      status_ = absl::InternalError("the stream ended without all answers");
    }
    pending_.clear();
    ending = status_;
  }
  for (Done& done : unanswered) std::move(done)(ending);
  absl::MutexLock lock(&mutex_);
  done_ = true;  // last: the stream may go
}

template class TaggedStream<v1::StreamComputeAttentionResponse>;
template class TaggedStream<v1::StreamDecodeResponse>;

}  // namespace attention
