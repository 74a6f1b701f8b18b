#include "command_line/program_flags.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <utility>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "command_line/version.h"

namespace attention {
namespace {

constexpr size_t kHelpWidth = 80;

enum class Help { kNone, kProgram, kFull };

Help RequestedHelp(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const absl::string_view argument = argv[i];
    if (argument == "--") break;
    for (const absl::string_view dashes : {"--", "-"}) {
      if (argument == absl::StrCat(dashes, "help") ||
          argument == absl::StrCat(dashes, "helpshort")) {
        return Help::kProgram;
      }
      if (argument == absl::StrCat(dashes, "helpfull")) return Help::kFull;
    }
  }
  return Help::kNone;
}

// The words, indented and broken into lines.
void AppendWrapped(absl::string_view text, std::string* result) {
  constexpr absl::string_view kIndent = "     ";
  std::string line(kIndent);
  for (const absl::string_view word :
       absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty())) {
    if (line.size() > kIndent.size() &&
        line.size() + 1 + word.size() > kHelpWidth) {
      absl::StrAppend(result, line, "\n");
      line = std::string(kIndent);
    }
    absl::StrAppend(&line, " ", word);
  }
  absl::StrAppend(result, line, "\n");
}

std::string HelpText(const Program& program, Help help) {
  const auto flags = absl::GetAllFlags();
  std::string text = absl::StrCat(program.name, " ", kProgramVersion, "\n\n",
                                  program.usage, "\n\nFlags:\n");
  for (const auto& [name, flag] :
       std::map<absl::string_view, absl::CommandLineFlag*>(flags.begin(),
                                                           flags.end())) {
    if (flag->IsRetired() ||
        (help == Help::kProgram &&
         !absl::EndsWith(flag->Filename(), program.flags_file))) {
      continue;
    }
    const std::string value = flag->DefaultValue();
    absl::StrAppend(
        &text, "  --", name, " (",
        value.empty() ? "no default" : absl::StrCat("default ", value), ")\n");
    AppendWrapped(flag->Help(), &text);
  }
  return text;
}

}  // namespace

std::vector<char*> ParseProgramFlags(const Program& program, int argc,
                                     char** argv) {
  if (const Help help = RequestedHelp(argc, argv); help != Help::kNone) {
    std::fputs(HelpText(program, help).c_str(), stdout);
    // Flushes; a full disk or a closed pipe is an error like any other.
    std::exit(std::fflush(stdout) == 0 ? EXIT_SUCCESS : EXIT_FAILURE);
  }
  absl::SetProgramUsageMessage(program.usage);
  absl::FlagsUsageConfig config;
  config.version_string = [name = program.name] {
    return absl::StrCat(name, " ", kProgramVersion, "\n");
  };
  absl::SetFlagsUsageConfig(std::move(config));
  return absl::ParseCommandLine(argc, argv);
}

}  // namespace attention
