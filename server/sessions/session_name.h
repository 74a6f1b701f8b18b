// Names of sessions: "sessions/<replica>.<id>".
#ifndef ATTENTION_SERVER_SESSIONS_SESSION_NAME_H_
#define ATTENTION_SERVER_SESSIONS_SESSION_NAME_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace attention {

inline constexpr size_t kMaxReplicaNameBytes = 63;
inline constexpr size_t kSessionIdDigits = 32;

struct SessionName {
  absl::string_view replica;
  absl::string_view id;
};

// INVALID_ARGUMENT unless it has 1 to kMaxReplicaNameBytes letters, digits, '-'
// and '_'.
absl::Status CheckReplicaName(absl::string_view name);

// 32 lower-case hexadecimal digits.
bool IsSessionId(absl::string_view id);

// Parts of `name`, which comes from strangers. INVALID_ARGUMENT when it is
// none.
absl::StatusOr<SessionName> ParseSessionName(absl::string_view name);
std::string FormatSessionName(absl::string_view replica, absl::string_view id);

// 128 bits from the system's source of randomness.
absl::StatusOr<std::string> MakeSessionId();

}  // namespace attention

#endif  // ATTENTION_SERVER_SESSIONS_SESSION_NAME_H_
