#include "server/transport/server_call.h"

#include "grpc/grpc.h"

namespace attention {

void ServerCall::Await(grpc::AsyncGenericService* service,
                       grpc::ServerCompletionQueue* queue, Taker* taker) {
  auto* call = new ServerCall(taker);
  call->context_.AsyncNotifyWhenDone(call->closed_.Tag());
  service->RequestCall(&call->context_, &call->stream_, queue, queue,
                       call->accepted_.Tag());
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
    if (handler_.load() != nullptr) TellOfCancelling();
  }
  Unref();
}

void ServerCall::TellOfCancelling() {
  if (!told_.exchange(true)) handler_.load()->OnCancel();
}

void ServerCall::StartRead(grpc::ByteBuffer* message) {
  Ref();
  stream_.Read(message, read_.Tag());
}

void ServerCall::OnRead(bool ok) {
  if (ok) {
    EventLoop::NoteArrival();
  } else if (grpc_call_failed_before_recv_message(context_.c_call())) {
    cancelled_.store(true);  // OnClosed may come later
  }
  handler_.load()->OnReadDone(ok);
  Unref();
}

void ServerCall::StartWrite(const grpc::ByteBuffer& message,
                            bool another_follows) {
  Ref();
  taker_->writes()->Begin(this, message.Length());
  grpc::WriteOptions options;
  if (another_follows) options.set_buffer_hint();
  stream_.Write(message, options, written_.Tag());
}

void ServerCall::OnWritten(bool ok) {
  taker_->writes()->End(this);
  handler_.load()->OnWriteDone(ok);
  Unref();
}

void ServerCall::Finish(const grpc::Status& status) {
  taker_->writes()->Begin(this, 0);
  stream_.Finish(status, finished_.Tag());
}

void ServerCall::WriteAndFinish(const grpc::ByteBuffer& message) {
  taker_->writes()->Begin(this, message.Length());
  stream_.WriteAndFinish(message, grpc::WriteOptions(), grpc::Status::OK,
                         finished_.Tag());
}

void ServerCall::OnFinished(bool) {
  taker_->writes()->End(this);
  Unref();
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
