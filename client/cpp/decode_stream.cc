#include "client/cpp/decode_stream.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cpp/attempt.h"
#include "client/cpp/call_runner.h"
#include "client/cpp/decode_call.h"
#include "client/cpp/messages.h"
#include "client/cpp/session_impl.h"

namespace attention {

DecodeStreamImpl::DecodeStreamImpl(const SessionCaller& caller,
                                   absl::Duration timeout)
    : caller_(caller) {
  SetDeadline(timeout, context_);
  SetTenant(caller_.runner->tenant(), context_);
  StartCall(caller_.runner->NextStub(), SessionCaller::Method("StreamDecode"),
            context_, caller_.runner->loop());
  StartRead(&read_);
}

DecodeStreamImpl::~DecodeStreamImpl() {
  context_.TryCancel();
  absl::MutexLock lock(&mutex_);
  closing_ = true;
  mutex_.Await(absl::Condition(&done_));
}

void DecodeStreamImpl::Send(const DecodeRequest& request, Done done) {
  absl::Status refusal;
  {
    absl::MutexLock lock(&mutex_);
    if (broken_) {
      refusal = done_ ? status_ : absl::UnavailableError("the stream broke");
      if (refusal.ok()) refusal = absl::UnavailableError("the stream ended");
    } else if (closing_) {
      refusal = absl::FailedPreconditionError("the stream is closed");
    } else {
      // Under the lock: positions and messages have one order.
      const int64_t tag = next_tag_++;
      absl::StatusOr<grpc::ByteBuffer> message = SerializeStreamDecode(
          request, PositionsOf(request), tag, *caller_.memory);
      if (message.ok()) {
        for (const DecodeItem& item : request.items) {
          static_cast<SessionImpl*>(item.session)
              ->Advance(item.layer, item.token_count);
        }
        pending_.emplace(tag, Pending{DecodeShape(request), std::move(done)});
        writes_.push_back(*std::move(message));
        if (!writing_) WriteNext();
        return;
      }
      refusal = message.status();
    }
  }
  std::move(done)(std::move(refusal));
}

absl::Status DecodeStreamImpl::Close() {
  absl::MutexLock lock(&mutex_);
  if (!std::exchange(closing_, true) && !broken_ && !writing_) WriteNext();
  mutex_.Await(absl::Condition(&done_));
  return status_;
}

void DecodeStreamImpl::WriteNext() {
  if (!writes_.empty()) {
    writing_ = true;
    StartWrite(writes_.front());
    writes_.pop_front();
  } else if (closing_ && !std::exchange(closed_, true)) {
    StartWritesDone();
  }
}

void DecodeStreamImpl::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  writing_ = false;
  if (ok && !broken_) WriteNext();  // otherwise OnDone says why
}

bool DecodeStreamImpl::OnReadDone(bool ok) {
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

absl::Status DecodeStreamImpl::Deliver() {
  grpc::ByteBuffer message;
  message.Swap(&read_);
  v1::StreamDecodeResponse response;
  if (absl::Status s = Parse(std::move(message), &response); !s.ok()) return s;
  std::optional<Pending> pending;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = pending_.find(response.tag());
    if (found == pending_.end()) {
      return absl::InternalError(
          absl::StrCat("the server answered the tag ", response.tag(),
                       ", which is of no message under way"));
    }
    pending = std::move(found->second);
    pending_.erase(found);
  }
  absl::StatusOr<DecodeResult> result;
  if (response.has_error()) {
    result = StatusOf(response.error());
  } else {
    result = ResultOf(std::move(response), pending->shape);
  }
  EventLoop::LetOthersPoll();  // what `done` does may take long
  std::move(pending->done)(std::move(result));
  return absl::OkStatus();
}

void DecodeStreamImpl::OnDone(const grpc::Status& status) {
  std::vector<Done> unanswered;
  absl::Status ending;
  {
    absl::MutexLock lock(&mutex_);
    broken_ = true;
    status_ = error_.ok() ? ToAbslStatus(status) : error_;
    for (auto& [tag, pending] : pending_) {
      unanswered.push_back(std::move(pending.done));
    }
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

}  // namespace attention
