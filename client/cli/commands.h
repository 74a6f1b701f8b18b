// The subcommands of attention-cli.
#ifndef ATTENTION_CLIENT_CLI_COMMANDS_H_
#define ATTENTION_CLIENT_CLI_COMMANDS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/arguments.h"
#include "client/cpp/attention_client.h"

namespace attention::cli {

struct Command {
  std::string name;
  std::string summary;  // one line for the list of commands
  std::string help;     // what follows the usage line of its own help
  std::vector<FlagSpec> flags;
  // Returns an ExitCode. An error status is reported by the caller, as a usage
  // error when it is InvalidUsage.
  std::function<absl::StatusOr<int>(const Arguments&)> run;
};

Command AttendCommand();
Command InfoCommand();
Command HealthCommand();
Command SessionsCommand();

// The flags that every command has to reach its server.
std::vector<FlagSpec> ConnectionFlags();
absl::StatusOr<std::unique_ptr<Client>> Connect(const Arguments& arguments);

// Marks an error as the command line's: the caller exits with kExitUsage.
absl::Status InvalidUsage(absl::Status status);
bool IsInvalidUsage(const absl::Status& status);

}  // namespace attention::cli

#endif  // ATTENTION_CLIENT_CLI_COMMANDS_H_
