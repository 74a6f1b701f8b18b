// Ends a gRPC server when its calls have ended, whatever its peers do.
#ifndef ATTENTION_SERVER_LIFECYCLE_SERVER_SHUTDOWN_H_
#define ATTENTION_SERVER_LIFECYCLE_SERVER_SHUTDOWN_H_

#include "absl/time/time.h"
#include "grpcpp/server.h"

namespace attention {

// Refuses new connections, tells clients to go elsewhere, and waits until every
// call has ended, those whose message is still arriving included; cancels what
// is left at `deadline`. Returns whether nothing had to be cancelled.
//
// grpc::Server::Shutdown waits for connections as well: 20 s for a peer that is
// idle and does not answer, or until the deadline. This ends connections without
// calls after a moment, long enough for calls that were sent before the client
// had heard.
bool ShutDownServer(grpc::Server& server, absl::Time deadline);

}  // namespace attention

#endif  // ATTENTION_SERVER_LIFECYCLE_SERVER_SHUTDOWN_H_
