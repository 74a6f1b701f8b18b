#include "server/sessions/session_name.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/engine/error_reason.h"

namespace attention {
namespace {

constexpr absl::string_view kCollection = "sessions/";

bool IsReplicaName(absl::string_view name) {
  return !name.empty() && name.size() <= kMaxReplicaNameBytes &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(c) || c == '-' || c == '_';
         });
}

}  // namespace

absl::Status CheckReplicaName(absl::string_view name) {
  return IsReplicaName(name)
             ? absl::OkStatus()
             : InvalidRequest(absl::StrCat(
                   "replica_name must have 1 to ", kMaxReplicaNameBytes,
                   " letters, digits, '-' and '_'; got \"",
                   absl::CHexEscape(name.substr(0, 2 * kMaxReplicaNameBytes)),
                   "\""));
}

bool IsSessionId(absl::string_view id) {
  return id.size() == kSessionIdDigits &&
         std::all_of(id.begin(), id.end(), [](char c) {
           return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f');
         });
}

absl::StatusOr<SessionName> ParseSessionName(absl::string_view name) {
  absl::string_view rest = name;
  if (absl::ConsumePrefix(&rest, kCollection)) {
    const size_t dot = rest.find('.');
    if (dot != absl::string_view::npos && IsReplicaName(rest.substr(0, dot)) &&
        IsSessionId(rest.substr(dot + 1))) {
      return SessionName{rest.substr(0, dot), rest.substr(dot + 1)};
    }
  }
  return InvalidRequest(absl::StrCat(
      "a session's name must be sessions/<replica>.<", kSessionIdDigits,
      " hexadecimal digits>, as the server made it; got \"",
      absl::CHexEscape(name.substr(0, 2 * kMaxReplicaNameBytes)), "\""));
}

std::string FormatSessionName(absl::string_view replica, absl::string_view id) {
  return absl::StrCat(kCollection, replica, ".", id);
}

absl::StatusOr<std::string> MakeSessionId() {
  std::string bytes(kSessionIdDigits / 2, '\0');
  if (getentropy(bytes.data(), bytes.size()) != 0) {
    return absl::ErrnoToStatus(errno, "cannot get random bytes");
  }
  return absl::BytesToHexString(bytes);
}

}  // namespace attention
