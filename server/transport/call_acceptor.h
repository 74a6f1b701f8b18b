// Takes the calls of a server and gives each to the handler of its method.
#ifndef ATTENTION_SERVER_TRANSPORT_CALL_ACCEPTOR_H_
#define ATTENTION_SERVER_TRANSPORT_CALL_ACCEPTOR_H_

#include <functional>
#include <string>

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
class CallAcceptor : private ServerCall::Taker {
 public:
  // Calls of other methods end with UNIMPLEMENTED. `writes` outlives it.
  CallAcceptor(MethodTable methods, WriteWatch* writes);

  // Before the server is built.
  void Register(grpc::ServerBuilder& builder);
  // Once it has been built: takes calls from now on. `loop` is the queue's.
  void Start(grpc::ServerCompletionQueue* queue, EventLoop* loop)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // After the server's shutdown and before the queue's: waits until all calls
  // are gone.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  bool OnCall(ServerCall* call) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnCallGone() override ABSL_LOCKS_EXCLUDED(mutex_);
  EventLoop* loop() override { return loop_; }
  WriteWatch* writes() override { return writes_; }

  const MethodTable methods_;
  WriteWatch* const writes_;
  grpc::AsyncGenericService service_;
  EventLoop* loop_ = nullptr;  // from Start on

  absl::Mutex mutex_;
  // Null: no further calls are taken.
  grpc::ServerCompletionQueue* queue_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int call_count_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_TRANSPORT_CALL_ACCEPTOR_H_
