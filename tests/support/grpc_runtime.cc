// Sets gRPC up for byte buffers outside of calls. Where gRPC is linked
// statically, only programs that can make a channel or a server contain what
// does that.
#include "grpcpp/create_channel.h"

namespace attention {

extern const void* const kLinksGrpcRuntime;
const void* const kLinksGrpcRuntime =
    reinterpret_cast<const void*>(&grpc::CreateCustomChannel);

}  // namespace attention
