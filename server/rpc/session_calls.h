// What the methods that open, show, keep and end sessions do, between a message
// and the registry.
#ifndef ATTENTION_SERVER_RPC_SESSION_CALLS_H_
#define ATTENTION_SERVER_RPC_SESSION_CALLS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "attention/v1/attention.pb.h"
#include "server/rpc/session_proto.h"
#include "server/sessions/session_registry.h"

namespace attention {

// The error of every method below when sessions are off.
absl::Status SessionsAreOff();

// Of one call. Its methods' errors are the registry's, and those of reading the
// message.
class SessionCalls {
 public:
  // All outlive it. `registry` is null when sessions are off; `devices` has the
  // names of the devices.
  SessionCalls(SessionRegistry* registry, const SessionDefaults& defaults,
               absl::Span<const std::string> devices, const std::string& owner)
      : registry_(registry),
        defaults_(defaults),
        devices_(devices),
        owner_(owner) {}

  absl::Status Handle(const v1::CreateSessionRequest& request,
                      v1::CreateSessionResponse& response) const;
  absl::Status Handle(const v1::GetSessionRequest& request,
                      v1::GetSessionResponse& response) const;
  absl::Status Handle(const v1::ListSessionsRequest& request,
                      v1::ListSessionsResponse& response) const;
  absl::Status Handle(const v1::DeleteSessionRequest& request,
                      v1::DeleteSessionResponse& response) const;
  absl::Status Handle(const v1::RenewSessionRequest& request,
                      v1::RenewSessionResponse& response) const;
  absl::Status Handle(const v1::ForkSessionRequest& request,
                      v1::ForkSessionResponse& response) const;
  absl::Status Handle(const v1::TruncateSessionRequest& request,
                      v1::TruncateSessionResponse& response) const;

 private:
  // Puts the session into the answer, unless there is none.
  template <typename Response>
  absl::Status Answer(const absl::StatusOr<SessionInfo>& info,
                      Response& response) const;

  SessionRegistry* const registry_;
  const SessionDefaults& defaults_;
  const absl::Span<const std::string> devices_;
  const std::string& owner_;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_SESSION_CALLS_H_
