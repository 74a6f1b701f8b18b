#include "server/rpc/pipelined_stream.h"

#include <utility>
#include <vector>

#include "server/scheduling/exit_status.h"

namespace attention {

void PipelinedStream::Begin(const std::shared_ptr<PipelinedStream>& stream) {
  CallEnvironment& environment = *stream->environment_;
  stream->self_ = stream;
  stream->pass_ = environment.gate.Enter();
  stream->call_->Bind(stream.get());
  environment.started_calls.fetch_add(1, std::memory_order_relaxed);
  {
    absl::MutexLock lock(&stream->mutex_);
    stream->load_.emplace(stream->call_->loop());
    stream->AdvanceLocked();
  }
  stream->table_->Add(stream);
}

PipelinedStream::PipelinedStream(MakeMessage make_message, ServerCall* call,
                                 CallEnvironment* environment,
                                 StreamTable* table)
    : make_message_(make_message),
      call_(call),
      environment_(environment),
      table_(table) {}

void PipelinedStream::OnReadDone(bool ok) {
  if (!ok) return Close(absl::OkStatus());
  environment_->metrics->BytesReceived(read_.Length());
  if (absl::Status s = Take(); !s.ok()) {
    Close(s);
    ReadOn();
  }
}

void PipelinedStream::ReadOn() {
  absl::MutexLock lock(&mutex_);
  reading_ = false;
  AdvanceLocked();
}

absl::Status PipelinedStream::Take() {
  const auto wire = std::make_shared<WireMessage>(read_);
  read_.Clear();  // the slices hold the memory now
  if (!caller_.has_value()) {
    absl::StatusOr<std::string> tenant = TenantOf(call_->context());
    if (!tenant.ok()) return tenant.status();
    caller_ = {.tenant = *std::move(tenant),
               .deadline = DeadlineOf(call_->context())};
  }
  const MessagePointer message =
      make_message_(shared_from_this(), environment_);
  if (absl::Status s = message->Read(wire, *caller_); !s.ok()) return s;
  if (!Admit(message)) message->Refuse(CallerLeft(call_->context()));
  // So that the next messages arrive while this one is computed here, and share
  // a batch. Those that must be queued in order are read one at a time.
  const bool reads_ahead = message->may_be_overtaken();
  if (reads_ahead) ReadOn();
  EventLoop::LetOthersPoll();  // it may be computed here
  message->Start();
  if (!reads_ahead) ReadOn();
  return absl::OkStatus();
}

bool PipelinedStream::Admit(const MessagePointer& message) {
  absl::MutexLock lock(&mutex_);
  if (abandoned_) return false;
  load_->MessageBegins();
  pending_[message.get()] = message;
  moved_bytes_ += message->moved_bytes();
  for (const std::string& session : message->sessions()) {
    PipelinedMessage*& last = last_[session];
    if (last == message.get()) continue;  // the session has several items
    if (last != nullptr) {
      last->order.successors.push_back(message.get());
      ++message->order.predecessors;
    }
    last = message.get();
  }
  return true;
}

void PipelinedStream::OnAnswered(const MessagePointer& message) {
  absl::MutexLock lock(&mutex_);
  message->order.answered = true;
  if (abandoned_) {
    pending_.erase(message.get());
    return;
  }
  if (load_.has_value()) load_->MessageEnds();
  if (message->order.predecessors == 0) ReleaseLocked(message.get());
  AdvanceLocked();
}

void PipelinedStream::ReleaseLocked(PipelinedMessage* message) {
  std::vector<PipelinedMessage*> to_release = {message};
  while (!to_release.empty()) {
    PipelinedMessage& next = *to_release.back();
    to_release.pop_back();
    answers_.push_back({next.TakeAnswer(), next.moved_bytes()});
    for (PipelinedMessage* successor : next.order.successors) {
      if (--successor->order.predecessors == 0 && successor->order.answered) {
        to_release.push_back(successor);
      }
    }
    for (const std::string& session : next.sessions()) {
      const auto last = last_.find(session);
      if (last != last_.end() && last->second == &next) last_.erase(last);
    }
    pending_.erase(&next);
  }
}

void PipelinedStream::AdvanceLocked() {
  if (finished_) return;
  if (!writing_ && !answers_.empty()) {
    writing_ = true;
    Answer& answer = answers_.front();
    environment_->metrics->BytesSent(answer.buffer.Length());
    call_->StartWrite(answer.buffer, answers_.size() > 1);
    written_moved_bytes_ = answer.moved_bytes;
    answers_.pop_front();
  }
  const bool is_idle = !writing_ && answers_.empty() && pending_.empty();
  if (end_status_.has_value()) {
    if (is_idle) FinishLocked(*end_status_);
    return;
  }
  const size_t under_way = pending_.size() + answers_.size() + writing_;
  if (!reading_ && under_way < kMaxPipelinedMessages &&
      moved_bytes_ < kMaxPipelinedBytes) {
    reading_ = true;
    call_->StartRead(&read_);
  }
}

void PipelinedStream::OnWriteDone(bool ok) {
  if (!ok) return Abandon();
  absl::MutexLock lock(&mutex_);
  writing_ = false;
  moved_bytes_ -= written_moved_bytes_;
  AdvanceLocked();
}

void PipelinedStream::Close(const absl::Status& status) {
  if (call_->IsCancelled()) return Abandon();
  absl::MutexLock lock(&mutex_);
  if (end_status_.has_value()) return;
  end_status_ = status;
  AdvanceLocked();
}

void PipelinedStream::EndForDrain() { Close(DrainingStatus()); }

void PipelinedStream::OnCancel() { Abandon(); }

void PipelinedStream::Abandon() {
  std::vector<MessagePointer> messages;
  {
    absl::MutexLock lock(&mutex_);
    if (abandoned_) return;
    abandoned_ = true;
    answers_.clear();
    last_.clear();
    for (const auto& [pointer, message] : pending_) messages.push_back(message);
    absl::erase_if(pending_, [](const auto& entry) {
      return entry.first->order.answered;
    });
    FinishLocked(CallerLeft(call_->context()));
  }
  // Outside the lock: it may call OnAnswered.
  for (const MessagePointer& message : messages) message->Cancel();
}

void PipelinedStream::FinishLocked(const absl::Status& status) {
  if (finished_) return;
  finished_ = true;
  environment_->finished_calls.fetch_add(1, std::memory_order_relaxed);
  call_->Finish(status.ok()
                    ? grpc::Status::OK
                    : RefusalOf(status, *environment_, call_->context()));
}

void PipelinedStream::OnDone() {
  table_->Remove(this);
  {
    absl::MutexLock lock(&mutex_);
    load_.reset();
  }
  pass_.reset();
  self_.reset();
}

}  // namespace attention
