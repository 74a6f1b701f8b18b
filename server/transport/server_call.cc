#include "server/transport/server_call.h"

#include "grpc/grpc.h"

namespace attention {

void ServerCall::Await(grpc::AsyncGenericService* service,
                       grpc::ServerCompletionQueue* queue, Taker* taker) {
  auto* call = new ServerCall(taker);
  call->context_.AsyncNotifyWhenDone(&call->closed_);
  service->RequestCall(&call->context_, &call->stream_, queue, queue,
                       &call->accepted_);
}

void ServerCall::OnAccepted(bool ok) {
  if (!ok) {
    delete this;  // the server stops: there is no other event
    return;
  }
  EventLoop::NoteArrival();
  if (!taker_->OnCall(this)) Unref();  // there will be no end
  Unref();
}

void ServerCall::Bind(Handler* handler) {
  handler_.store(handler);
  if (cancelled_.load()) TellOfCancelling();
}

void ServerCall::OnClosed(bool) {
  if (context_.IsCancelled()) {
    cancelled_.store(true);
    if (handler() != nullptr) TellOfCancelling();
  }
  Unref();
}

void ServerCall::TellOfCancelling() {
  if (!told_.exchange(true)) handler()->OnCancel();
}

void ServerCall::StartRead(grpc::ByteBuffer* message) {
  Ref();
  stream_.Read(message, &read_);
}

void ServerCall::OnRead(bool ok) {
  if (ok) {
    EventLoop::NoteArrival();
  } else if (grpc_call_failed_before_recv_message(context_.c_call())) {
    cancelled_.store(true);  // OnClosed may come later
  }
  handler()->OnReadDone(ok);
  Unref();
}

void ServerCall::StartWrite(const grpc::ByteBuffer& message) {
  Ref();
  stream_.Write(message, &written_);
}

void ServerCall::OnWritten(bool ok) {
  handler()->OnWriteDone(ok);
  Unref();
}

void ServerCall::Finish(const grpc::Status& status) {
  stream_.Finish(status, &finished_);
}

void ServerCall::WriteAndFinish(const grpc::ByteBuffer& message) {
  stream_.WriteAndFinish(message, grpc::WriteOptions(), grpc::Status::OK,
                         &finished_);
}

void ServerCall::OnFinished(bool) { Unref(); }

ServerCall::Handler* ServerCall::handler() {
  references_.load(std::memory_order_acquire);
  return handler_.load();
}

void ServerCall::Unref() {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  Taker* const taker = taker_;
  Handler* const handler = handler_.load();
  if (handler != nullptr) handler->OnDone();
  delete this;
  if (handler != nullptr) taker->OnCallGone();
}

}  // namespace attention
