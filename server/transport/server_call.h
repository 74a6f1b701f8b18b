// One call of any method, as gRPC's completion queue delivers it: messages in,
// messages out, a status. A unary call is a stream of one message each way.
#ifndef ATTENTION_SERVER_TRANSPORT_SERVER_CALL_H_
#define ATTENTION_SERVER_TRANSPORT_SERVER_CALL_H_

#include <atomic>
#include <string>

#include "event_loop/event_loop.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/status.h"
#include "server/transport/write_watch.h"

namespace attention {

// Thread-safe. Owns itself, until its handler has been told OnDone.
class ServerCall {
 public:
  // What is to be done with a call. Its methods are called on the threads of
  // the event loop, in part at the same time, and never within a method of the
  // call except Bind.
  class Handler {
   public:
    virtual ~Handler() = default;
    // False: there is no message, now or later.
    virtual void OnReadDone(bool ok) = 0;
    // False: the caller is gone.
    virtual void OnWriteDone(bool /*ok*/) {}
    // The caller, or its deadline, has ended the call. Finish is still due.
    virtual void OnCancel() {}
    // After all else and after Finish. The call is gone when this returns.
    virtual void OnDone() = 0;
  };

  // Who takes calls.
  class Taker {
   public:
    virtual ~Taker() = default;
    // Binds the call, or returns false: then the call is dropped without an
    // operation, as is due when the server has been shut down.
    virtual bool OnCall(ServerCall* call) = 0;
    // A call that was taken is gone.
    virtual void OnCallGone() = 0;
    // Of the calls' events. Calls that are taken are under way there.
    virtual EventLoop* loop() = 0;
    // Learns of what they write.
    virtual WriteWatch* writes() = 0;
  };

  // Waits for the next call, whichever it is. When the server stops instead,
  // nobody learns of it. All outlive it.
  static void Await(grpc::AsyncGenericService* service,
                    grpc::ServerCompletionQueue* queue, Taker* taker);

  // Before anything is started. May call OnCancel.
  void Bind(Handler* handler);

  EventLoop* loop() const { return taker_->loop(); }
  const std::string& method() const { return context_.method(); }
  grpc::ServerContextBase& context() { return context_; }
  bool IsCancelled() const { return cancelled_.load(); }
  void TryCancel() { context_.TryCancel(); }

  // One read, and one write, at a time. Messages read are valid until the next
  // read; written ones may go at once. If the next write follows at once, both
  // are sent together.
  void StartRead(grpc::ByteBuffer* message);
  void StartWrite(const grpc::ByteBuffer& message,
                  bool another_follows = false);
  // The end of the call. Once, and nothing is started afterwards.
  void Finish(const grpc::Status& status);
  // As both, at the cost of one. There is no OnWriteDone.
  void WriteAndFinish(const grpc::ByteBuffer& message);

 private:
  template <void (ServerCall::*handle)(bool)>
  class Operation final : public Event {
   public:
    explicit Operation(ServerCall* call) : call_(call) {}

   private:
    void OnEvent(bool ok) override { (call_->*handle)(ok); }

    ServerCall* const call_;
  };

  explicit ServerCall(Taker* taker) : taker_(taker) {}
  ~ServerCall() = default;

  void OnAccepted(bool ok);
  void OnClosed(bool ok);
  void OnRead(bool ok);
  void OnWritten(bool ok);
  void OnFinished(bool ok);
  void TellOfCancelling();
  void Ref() { references_.fetch_add(1, std::memory_order_relaxed); }
  void Unref();

  Taker* const taker_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_{&context_};
  Operation<&ServerCall::OnAccepted> accepted_{this};
  Operation<&ServerCall::OnClosed> closed_{this};
  Operation<&ServerCall::OnRead> read_{this};
  Operation<&ServerCall::OnWritten> written_{this};
  Operation<&ServerCall::OnFinished> finished_{this};

  // Of operations under way; accepting, the end and the closing of the call
  // are, from the beginning.
  std::atomic<int> references_{3};
  // Both sequentially consistent: whoever of Bind and OnClosed is later tells
  // the handler.
  std::atomic<Handler*> handler_{nullptr};
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> told_{false};
};

}  // namespace attention

#endif  // ATTENTION_SERVER_TRANSPORT_SERVER_CALL_H_
