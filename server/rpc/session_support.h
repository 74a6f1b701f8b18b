// What calls and streams that use sessions have in common.
#ifndef ATTENTION_SERVER_RPC_SESSION_SUPPORT_H_
#define ATTENTION_SERVER_RPC_SESSION_SUPPORT_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "server/rpc/call_support.h"
#include "server/rpc/step_decoder.h"

namespace attention {

// DecodeSteps with the sessions of `owner`.
inline absl::StatusOr<DecodedSteps> DecodeStepsOf(
    const std::string& owner, StepsRequest request,
    const CallEnvironment& environment) {
  SessionRegistry* const registry = environment.sessions;
  if (registry == nullptr) return SessionsAreOff();
  return DecodeSteps(
      std::move(request),
      [&](absl::string_view session, int64_t layer) {
        return registry->Use(owner, session, layer);
      },
      environment.limits);
}

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_SESSION_SUPPORT_H_
