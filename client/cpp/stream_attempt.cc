#include "client/cpp/stream_attempt.h"

#include <string>
#include <utility>

#include "client/cpp/attempt.h"
#include "client/cpp/call_runner.h"
#include "client/cpp/messages.h"
#include "client/cpp/request_serializer.h"
#include "grpcpp/support/slice.h"

namespace attention {
namespace {

constexpr char kStreamMethod[] =
    "/attention.v1.AttentionService/StreamAttention";

}  // namespace

grpc::Slice LentMemory::Lend(const char* data, size_t size) {
  {
    absl::MutexLock lock(&mutex_);
    ++lent_;
  }
  // gRPC only reads it.
  return grpc::Slice(const_cast<char*>(data), size, &LentMemory::Return, this);
}

void LentMemory::Return(void* memory) {
  auto* const self = static_cast<LentMemory*>(memory);
  std::function<void()> returned;
  {
    absl::MutexLock lock(&self->mutex_);
    if (--self->lent_ == 0) returned = std::move(self->returned_);
  }
  if (returned) returned();
}

bool LentMemory::WhenReturned(std::function<void()> returned) {
  absl::MutexLock lock(&mutex_);
  if (lent_ == 0) return false;
  returned_ = std::move(returned);
  return true;
}

StreamAttempt::StreamAttempt(const grpc::ByteBuffer& start, UploadPlan plan,
                             bool resumed, StreamedAnswer answer,
                             LentMemory* memory, Done done)
    : start_(start),
      memory_(*memory),
      done_(std::move(done)),
      answer_(std::move(answer)),
      plan_(std::move(plan)),
      may_send_(!resumed) {}

void StreamAttempt::Begin(grpc::GenericStub& stub, absl::Duration timeout,
                          const std::string& tenant, EventLoop& loop) {
  SetDeadline(timeout, context_);
  SetTenant(tenant, context_);
  StartCall(stub, kStreamMethod, context_, loop);
  StartWrite(start_);
  StartRead(&read_);  // last: from here on the attempt may be over at any time
}

void StreamAttempt::OnWriteDone(bool ok) {
  if (!ok) return;  // OnDone says why
  absl::MutexLock lock(&mutex_);
  writing_ = false;
  SendNext();
}

void StreamAttempt::SendNext() {
  if (!may_send_ || writing_ || closed_) return;
  const std::optional<UploadPlan::Chunk> chunk = plan_.Next();
  if (!chunk.has_value()) {
    closed_ = true;
    StartWritesDone();
    return;
  }
  v1::StreamAttentionRequest message;
  message.set_tensor(chunk->tensor);
  message.set_byte_offset(chunk->byte_offset);
  const grpc::Slice slices[] = {
      grpc::Slice(message.SerializeAsString() +
                  FieldPrefix(v1::StreamAttentionRequest::kDataFieldNumber,
                              chunk->size)),
      memory_.Lend(chunk->data, chunk->size)};
  writing_ = true;
  StartWrite(grpc::ByteBuffer(slices, 2));
}

bool StreamAttempt::OnReadDone(bool ok) {
  if (!ok) return false;  // OnDone follows
  error_ = TakeMessage();
  if (!error_.ok()) {
    context_.TryCancel();
    return false;
  }
  StartRead(&read_);
  return true;
}

absl::Status StreamAttempt::TakeMessage() {
  grpc::ByteBuffer message;
  message.Swap(&read_);
  const auto state = answer_.Take(std::move(message));
  if (!state.ok()) return state.status();
  if (!state->has_value()) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  if (may_send_) return absl::OkStatus();
  if (absl::Status s = plan_.Skip(**state); !s.ok()) return s;
  may_send_ = true;
  SendNext();
  return absl::OkStatus();
}

void StreamAttempt::OnDone(const grpc::Status& status) {
  Outcome outcome;
  outcome.pushback = FindPushback(context_);
  {
    absl::MutexLock lock(&mutex_);
    outcome.received_bytes = plan_.received_bytes();
  }
  if (!error_.ok()) {
    outcome.result = error_;
  } else if (!status.ok()) {
    outcome.result = ToAbslStatus(status);
  } else {
    outcome.result = std::move(answer_).Finish();
  }
  std::exchange(done_, nullptr)(std::move(outcome));
}

}  // namespace attention
