#include "client/cpp/append_attempt.h"

#include <utility>

#include "client/cpp/attempt.h"
#include "client/cpp/call_runner.h"
#include "client/cpp/session_messages.h"

namespace attention {

AppendAttempt::AppendAttempt(const SessionCaller& caller,
                             const std::string& session,
                             const SessionOptions& options, AppendPlan plan)
    : caller_(caller),
      session_(session),
      options_(options),
      plan_(std::move(plan)) {}

AppendAttempt::Outcome AppendAttempt::Run(absl::Duration timeout) {
  SetDeadline(timeout, context_);
  SetTenant(caller_.runner->tenant(), context_);
  const StubPool::Entry& entry = caller_.runner->NextStub();
  StartCall(*entry.stub, SessionCaller::Method("StreamAppendKeysValues"),
            context_, *entry.loop);
  {
    absl::MutexLock lock(&mutex_);
    SendNext();
  }
  StartRead(&answer_);
  done_.WaitForNotification();
  absl::MutexLock lock(&mutex_);
  return {error_.ok() ? ToAbslStatus(status_) : error_, FindPushback(context_)};
}

void AppendAttempt::SendNext() {
  const std::optional<AppendPlan::Chunk> chunk = plan_.Next();
  if (!chunk.has_value()) {
    StartWritesDone();
    return;
  }
  absl::StatusOr<grpc::ByteBuffer> message = SerializeAppendChunk(
      session_, options_, chunk->tokens, chunk->position, *caller_.memory);
  if (!message.ok()) {
    error_ = message.status();
    context_.TryCancel();
    return;
  }
  StartWrite(*message);
}

void AppendAttempt::OnWriteDone(bool ok) {
  if (!ok) return;  // OnDone says why
  absl::MutexLock lock(&mutex_);
  SendNext();
}

void AppendAttempt::OnDone(const grpc::Status& status) {
  status_ = status;
  done_.Notify();
}

}  // namespace attention
