#include "client/cpp/client_stream.h"

namespace attention {

void ClientStream::StartCall(grpc::GenericStub& stub, const std::string& method,
                             grpc::ClientContext& context, EventLoop& loop) {
  loop_ = &loop;
  loop_->Begin();
  // The start goes with the first message, or with the end of them.
  context.set_initial_metadata_corked(true);
  stream_ = stub.PrepareCall(&context, method, loop.queue());
  stream_->StartCall(nullptr);
}

void ClientStream::StartRead(grpc::ByteBuffer* message) {
  Ref();
  stream_->Read(message, read_.Tag());
}

void ClientStream::OnRead(bool ok) {
  if (ok) EventLoop::NoteArrival();
  // The end only now: the initial metadata, which both ask for, has come with a
  // read. The next one may be over already, on another thread.
  if (!OnReadDone(ok)) stream_->Finish(&status_, over_.Tag());
  Unref();
}

void ClientStream::StartWrite(const grpc::ByteBuffer& message,
                              bool another_follows) {
  Ref();
  grpc::WriteOptions options;
  if (another_follows) options.set_buffer_hint();
  stream_->Write(message, options, written_.Tag());
}

void ClientStream::OnWritten(bool ok) {
  OnWriteDone(ok);
  Unref();
}

void ClientStream::StartWritesDone() {
  Ref();
  stream_->WritesDone(over_.Tag());
}

void ClientStream::OnOver(bool) { Unref(); }

void ClientStream::Unref() {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  loop_->End();
  stream_.reset();  // lies in the call's memory, which the context keeps
  OnDone(status_);
}

}  // namespace attention
