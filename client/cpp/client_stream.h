// A stream of messages in both directions, on an event loop.
#ifndef ATTENTION_CLIENT_CPP_CLIENT_STREAM_H_
#define ATTENTION_CLIENT_CPP_CLIENT_STREAM_H_

#include <atomic>
#include <memory>
#include <string>

#include "event_loop/event_loop.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/status.h"

namespace attention {

// What the client's streams derive from. One read, and one write, at a time.
// Callbacks run on the event loop's threads, in part at the same time, and
// never within a method that starts something. Lives until OnDone.
class ClientStream {
 public:
  ClientStream() = default;
  ClientStream(const ClientStream&) = delete;
  ClientStream& operator=(const ClientStream&) = delete;

 protected:
  virtual ~ClientStream() = default;

  // First. `context` and `loop` outlive the stream, of which the server knows
  // with the first message. A read must follow: the stream ends with one that
  // is not followed by another, as none is that has failed.
  void StartCall(grpc::GenericStub& stub, const std::string& method,
                 grpc::ClientContext& context, EventLoop& loop);
  void StartRead(grpc::ByteBuffer* message);
  // The message may go at once. If the next one follows at once, both are sent
  // together.
  void StartWrite(const grpc::ByteBuffer& message,
                  bool another_follows = false);
  void StartWritesDone();

  // Returns whether the next read has been started.
  virtual bool OnReadDone(bool /*ok*/) { return false; }
  virtual void OnWriteDone(bool /*ok*/) {}
  // After all else. The stream may be destroyed here.
  virtual void OnDone(const grpc::Status& status) = 0;

 private:
  template <void (ClientStream::*handle)(bool)>
  class Operation final : public Event {
   public:
    explicit Operation(ClientStream* stream) : stream_(stream) {}

   private:
    void OnEvent(bool ok) override { (stream_->*handle)(ok); }

    ClientStream* const stream_;
  };

  void OnRead(bool ok);
  void OnWritten(bool ok);
  void OnOver(bool ok);  // of operations that nobody waits for
  void Ref() { references_.fetch_add(1, std::memory_order_relaxed); }
  void Unref();

  EventLoop* loop_ = nullptr;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  grpc::Status status_;
  Operation<&ClientStream::OnRead> read_{this};
  Operation<&ClientStream::OnWritten> written_{this};
  Operation<&ClientStream::OnOver> over_{this};
  std::atomic<int> references_{1};  // operations under way; one is the end
};

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_CLIENT_STREAM_H_
