// How gRPC is set up for this server, with reasons.
#ifndef ATTENTION_SERVER_LIFECYCLE_GRPC_SETTINGS_H_
#define ATTENTION_SERVER_LIFECYCLE_GRPC_SETTINGS_H_

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"
#include "grpcpp/server_builder.h"

namespace attention {

// After which a peer that does not answer is given up.
inline constexpr absl::Duration kPeerTimeout = absl::Seconds(20);

// Reflection and channelz for the servers built from now on, gRPC's own
// messages into the server's log and protobuf's nowhere. Process-wide,
// idempotent.
void InitializeGrpc();

// `max_queued_bytes` is what the scheduler lets wait.
void ConfigureServer(int64_t max_message_bytes, size_t max_queued_bytes,
                     grpc::ServerBuilder& builder);

}  // namespace attention

#endif  // ATTENTION_SERVER_LIFECYCLE_GRPC_SETTINGS_H_
