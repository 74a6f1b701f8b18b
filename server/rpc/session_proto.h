// Sessions as messages, and back.
#ifndef ATTENTION_SERVER_RPC_SESSION_PROTO_H_
#define ATTENTION_SERVER_RPC_SESSION_PROTO_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "attention/v1/attention.pb.h"
#include "server/sessions/session.h"

namespace attention {

// What sessions get that callers do not ask for.
struct SessionDefaults {
  int32_t page_tokens = 64;
  SplitPolicy split_policy = SplitPolicy::kFixed;  // where unspecified
  absl::Duration ttl = kDefaultSessionTtl;
};

v1::SplitPolicy ToProto(SplitPolicy policy);

// INVALID_ARGUMENT naming the field, its value and the bound: INVALID_REQUEST or
// UNSUPPORTED. Counts of layers and tokens, and pages that no memory holds, are the
// registry's to check.
absl::StatusOr<SessionConfig> ReadSessionConfig(
    const v1::SessionConfiguration& configuration,
    const SessionDefaults& defaults);

// All but the counts of tokens of layers.
void SetSession(const SessionInfo& info, const std::string& device_name,
                v1::Session& session);

// As above, with those counts.
void SetFullSession(const SessionInfo& info, const std::string& device_name,
                    v1::Session& session);

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_SESSION_PROTO_H_
