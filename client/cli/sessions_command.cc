#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "client/cli/byte_format.h"
#include "client/cli/commands.h"
#include "client/cli/exit_codes.h"
#include "client/cpp/sessions.h"

namespace attention::cli {
namespace {

std::string TimeText(const google::protobuf::Timestamp& timestamp) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ",
                          absl::FromUnixSeconds(timestamp.seconds()),
                          absl::UTCTimeZone());
}

void PrintLine(const v1::Session& session) {
  absl::PrintF("%s  %s on %s, expires %s%s\n", session.name(),
               FormatBytes(session.resident_bytes()), session.device_name(),
               TimeText(session.expire_time()),
               session.is_lost() ? ", lost" : "");
}

void PrintSession(const v1::Session& session) {
  const v1::SessionConfiguration& c = session.configuration();
  absl::PrintF("name      %s%s\n", session.name(),
               session.is_lost() ? " (lost)" : "");
  absl::PrintF(
      "heads     %d, %d of keys and values, dimension %d, %d of values\n",
      c.query_head_count(), c.kv_head_count(), c.head_dim_qk(), c.head_dim_v());
  absl::PrintF("tokens    %s\n",
               absl::StrJoin(session.layer_token_counts(), ", "));
  absl::PrintF("reserved  %d tokens\n", session.reserved_token_count());
  absl::PrintF("memory    %s on %s, %s of it shared\n",
               FormatBytes(session.resident_bytes()), session.device_name(),
               FormatBytes(session.shared_bytes()));
  absl::PrintF("created   %s\nexpires   %s, %s after its last use\n",
               TimeText(session.create_time()), TimeText(session.expire_time()),
               absl::FormatDuration(absl::Seconds(session.ttl().seconds()) +
                                    absl::Nanoseconds(session.ttl().nanos())));
}

absl::StatusOr<int> Run(const Arguments& arguments) {
  const std::string name = arguments.GetString("name", "");
  if (arguments.Has("delete") && name.empty()) {
    return InvalidUsage(
        absl::InvalidArgumentError("--delete needs the --name of a session"));
  }
  auto client = Connect(arguments);
  if (!client.ok()) return client.status();
  Sessions& sessions = (*client)->sessions();
  if (name.empty()) {
    const absl::StatusOr<std::vector<v1::Session>> list = sessions.List();
    if (!list.ok()) return list.status();
    for (const v1::Session& session : *list) PrintLine(session);
    return kExitOk;
  }
  const auto session = sessions.Open(name);
  if (!session.ok()) return session.status();
  if (arguments.Has("delete")) {
    absl::Status status = (*session)->Delete();
    if (!status.ok()) return status;
    absl::PrintF("deleted %s\n", name);
    return kExitOk;
  }
  const absl::StatusOr<v1::Session> state = (*session)->Refresh();
  if (!state.ok()) return state.status();
  PrintSession(*state);
  return kExitOk;
}

}  // namespace

Command SessionsCommand() {
  Command command;
  command.name = "sessions";
  command.summary = "list, show or delete sessions";
  command.help =
      "Without --name, a line for each session of the tenant; with it, what\n"
      "the server says of that session. None of this keeps a session alive.\n";
  command.flags = ConnectionFlags();
  command.flags.push_back(
      {"tenant", "NAME", "whose sessions (default nobody's in particular)"});
  command.flags.push_back({"name", "NAME", "one session, sessions/..."});
  command.flags.push_back({"delete", "", "forget the session"});
  command.run = Run;
  return command;
}

}  // namespace attention::cli
