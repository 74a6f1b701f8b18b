// Takes the calls of a server and gives each to the handler of its method.
#ifndef ATTENTION_SERVER_TRANSPORT_CALL_ACCEPTOR_H_
#define ATTENTION_SERVER_TRANSPORT_CALL_ACCEPTOR_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/server_builder.h"
#include "server/transport/server_call.h"

namespace attention {

// What begins with a call of a method, by "/package.Service/Method": makes the
// call's handler, binds it and starts what comes first.
using MethodTable =
    absl::flat_hash_map<std::string, std::function<void(ServerCall* call)>>;

// For the methods that are generic ones in their service. A service whose
// methods are all generic is unknown to reflection. Outlives the server and the
// event loop of `queue`.
class CallAcceptor {
 public:
  // Calls of other methods end with UNIMPLEMENTED. `writes` outlives it.
  CallAcceptor(MethodTable methods, WriteWatch* writes);

  // Before the server is built.
  void Register(grpc::ServerBuilder& builder);
  // Once it has been built: takes calls from now on, also from this queue.
  // `loop` is the queue's.
  void Start(grpc::ServerCompletionQueue* queue, EventLoop* loop)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // After the server's shutdown and before the queue's: waits until all calls
  // are gone.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Takes the calls of one queue.
  class Lane final : public ServerCall::Taker {
   public:
    Lane(CallAcceptor* acceptor, grpc::ServerCompletionQueue* queue,
         EventLoop* loop)
        : acceptor_(acceptor), queue_(queue), loop_(loop) {}
    void Await() { ServerCall::Await(&acceptor_->service_, queue_, this); }

   private:
    bool OnCall(ServerCall* call) override;
    void OnCallGone() override;
    EventLoop* loop() override { return loop_; }
    WriteWatch* writes() override { return acceptor_->writes_; }

    CallAcceptor* const acceptor_;
    grpc::ServerCompletionQueue* const queue_;
    EventLoop* const loop_;
  };

  const MethodTable methods_;
  WriteWatch* const writes_;
  grpc::AsyncGenericService service_;

  absl::Mutex mutex_;
  std::vector<std::unique_ptr<Lane>> lanes_ ABSL_GUARDED_BY(mutex_);
  bool takes_calls_ ABSL_GUARDED_BY(mutex_) = false;
  int call_count_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_TRANSPORT_CALL_ACCEPTOR_H_
