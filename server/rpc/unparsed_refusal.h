// What callers get for a message that gRPC cannot parse: what they get from the
// methods that we parse ourselves, in place of gRPC's INTERNAL without a
// reason.
#ifndef ATTENTION_SERVER_RPC_UNPARSED_REFUSAL_H_
#define ATTENTION_SERVER_RPC_UNPARSED_REFUSAL_H_

#include "grpcpp/support/server_interceptor.h"
#include "server/logging/log.h"

namespace attention {

// Of the synchronous methods of a server, all of which are unary. Lives as long
// as the server. Thread-safe.
class UnparsedRefusal final
    : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override;

 private:
  class Interceptor;

  RateLimitedLog refusals_;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_UNPARSED_REFUSAL_H_
