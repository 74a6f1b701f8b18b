// Ends a gRPC server when its calls have ended, whatever its peers do.
#ifndef ATTENTION_SERVER_LIFECYCLE_SERVER_SHUTDOWN_H_
#define ATTENTION_SERVER_LIFECYCLE_SERVER_SHUTDOWN_H_

#include "absl/time/time.h"
#include "grpcpp/server.h"
#include "server/rpc/attention_service.h"
#include "server/transport/write_watch.h"

namespace attention {

// To be called when no more connections are accepted. Waits, for two seconds at
// most, until calls whose message is arriving are there; has `service` refuse
// all later ones; waits until those before are answered; then ends all
// connections, and by that, as UNAVAILABLE, what may come on them. At
// `deadline` it ends them in any case. Returns whether every call was answered
// that the service had taken, though callers may not have taken all of it.
//
// grpc::Server::Shutdown alone would drop calls (see ConnectionAcceptor), and
// wait for connections too: 20 s for a peer that is idle and does not answer.
bool ShutDownServer(grpc::Server& server, AttentionService& service,
                    const WriteWatch& writes, absl::Time deadline);

}  // namespace attention

#endif  // ATTENTION_SERVER_LIFECYCLE_SERVER_SHUTDOWN_H_
