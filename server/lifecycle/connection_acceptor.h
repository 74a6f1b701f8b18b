// Accepts connections for a grpc::Server, and can stop before the server does.
//
// gRPC's own listeners close only when the server shuts down. From that very
// moment it drops, as CANCELLED, each call whose message has not wholly
// arrived, and those that callers send until they have heard. A server that
// drains first has to be without listeners, then without calls, and then to
// shut down.
#ifndef ATTENTION_SERVER_LIFECYCLE_CONNECTION_ACCEPTOR_H_
#define ATTENTION_SERVER_LIFECYCLE_CONNECTION_ACCEPTOR_H_

#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "grpcpp/server_builder.h"
#include "server/lifecycle/listener.h"
#include "server/logging/log.h"

namespace attention {

class ConnectionAcceptor {
 public:
  using Target = grpc::experimental::ExternalConnectionAcceptor;

  // Gives the connections of all `listeners`, those that came since they were
  // opened too, to `target`, whose server has been started and outlives it.
  static absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> Start(
      std::vector<Listener> listeners, std::unique_ptr<Target> target);

  // From then on connections are refused. Those accepted stay.
  ~ConnectionAcceptor();

 private:
  ConnectionAcceptor(std::vector<Listener> listeners,
                     std::unique_ptr<Target> target, int stop_fd);
  void Run();
  // False when there is nothing to accept but an error.
  bool Accept(int socket);

  const std::vector<Listener> listeners_;
  const std::unique_ptr<Target> target_;
  const int stop_fd_;
  RateLimitedLog log_;
  std::thread thread_;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_LIFECYCLE_CONNECTION_ACCEPTOR_H_
