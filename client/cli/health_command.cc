#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/commands.h"
#include "client/cli/exit_codes.h"

namespace attention::cli {
namespace {

absl::StatusOr<int> Run(const Arguments& arguments) {
  auto client = Connect(arguments);
  if (!client.ok()) return client.status();
  absl::Status status =
      (*client)->CheckHealth(arguments.GetString("service", ""));
  if (!status.ok()) return status;
  absl::PrintF("SERVING\n");
  return kExitOk;
}

}  // namespace

Command HealthCommand() {
  Command command;
  command.name = "health";
  command.summary = "say whether the server takes requests";
  command.help =
      "Asks the standard gRPC health service once, without retries, and "
      "prints\n"
      "SERVING; fails otherwise.\n";
  command.flags = ConnectionFlags();
  command.flags.push_back({"service", "NAME",
                           "a single service instead of the whole server, such "
                           "as\nattention.v1.AttentionService"});
  command.run = Run;
  return command;
}

}  // namespace attention::cli
