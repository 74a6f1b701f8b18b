// attention-cli: one request to an Attention Server from the command line.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/arguments.h"
#include "client/cli/commands.h"
#include "client/cli/exit_codes.h"
#include "client/cpp/attention_client.h"
#include "command_line/version.h"

namespace attention::cli {
namespace {

constexpr char kExitCodes[] =
    "Exit codes: 0 done, 1 a file, the connection or the server failed, 2 the\n"
    "command line is wrong, 3 the answer failed --check.\n";

std::string Usage(const std::vector<Command>& commands) {
  std::string text =
      "Usage: attention-cli COMMAND [FLAGS]\n\n"
      "Sends requests to an Attention Server.\n\nCommands:\n";
  for (const Command& command : commands) {
    absl::StrAppendFormat(&text, "  %-10s%s\n", command.name, command.summary);
  }
  return absl::StrCat(
      text,
      "\nattention-cli COMMAND --help lists a command's flags, attention-cli\n"
      "--version shows the version.\n\n",
      kExitCodes);
}

int UsageError(const std::string& where, absl::string_view message) {
  absl::FPrintF(stderr, "%s: %s\nTry %s --help.\n", where, message, where);
  return kExitUsage;
}

int RunCommand(const Command& command, const std::vector<std::string>& args) {
  const std::string where = absl::StrCat("attention-cli ", command.name);
  const auto arguments = Arguments::Parse(command.flags, args);
  if (!arguments.ok()) return UsageError(where, arguments.status().message());
  if (arguments->help()) {
    absl::PrintF("Usage: %s [FLAGS]\n\n%s\nFlags:\n%s\n%s", where, command.help,
                 FormatFlags(command.flags), kExitCodes);
    return kExitOk;
  }
  const absl::StatusOr<int> code = command.run(*arguments);
  if (code.ok()) return *code;
  if (IsInvalidUsage(code.status())) {
    return UsageError(where, code.status().message());
  }
  const std::string reason = ErrorReason(code.status());
  absl::FPrintF(stderr, "%s: %s: %s%s\n", where,
                absl::StatusCodeToString(code.status().code()),
                code.status().message(),
                reason.empty() ? "" : absl::StrCat(" [", reason, "]"));
  return kExitFailed;
}

int Main(const std::vector<std::string>& args) {
  const std::vector<Command> commands = {AttendCommand(), InfoCommand(),
                                         HealthCommand(), SessionsCommand()};
  if (args.empty()) {
    absl::FPrintF(stderr, "%s", Usage(commands));
    return kExitUsage;
  }
  if (args[0] == "--help" || args[0] == "-h" || args[0] == "help") {
    absl::PrintF("%s", Usage(commands));
    return kExitOk;
  }
  if (args[0] == "--version") {
    absl::PrintF("attention-cli %s\n", kProgramVersion);
    return kExitOk;
  }
  for (const Command& command : commands) {
    if (command.name == args[0]) {
      return RunCommand(command, {args.begin() + 1, args.end()});
    }
  }
  return UsageError("attention-cli",
                    absl::StrCat("there is no command \"", args[0], "\""));
}

}  // namespace
}  // namespace attention::cli

int main(int argc, char** argv) {
  return attention::cli::Main({argv + 1, argv + argc});
}
