// The flags of one subcommand.
//
// Flags are written --name=value or --name value, switches --name. There are no
// positional arguments. absl::flags knows neither subcommands nor an exit code
// for usage errors, hence this.
#ifndef ATTENTION_CLIENT_CLI_ARGUMENTS_H_
#define ATTENTION_CLIENT_CLI_ARGUMENTS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace attention::cli {

struct FlagSpec {
  std::string name;         // without the dashes
  std::string placeholder;  // of its value, e.g. "FILE"; empty: a switch
  std::string help;         // lines are separated by \n
};

class Arguments {
 public:
  // InvalidArgument for unknown, repeated and incomplete flags. Accepts --help
  // in addition to `flags`; it takes precedence over any error.
  static absl::StatusOr<Arguments> Parse(const std::vector<FlagSpec>& flags,
                                         const std::vector<std::string>& args);

  bool help() const { return help_; }
  bool Has(absl::string_view name) const;
  std::string GetString(absl::string_view name,
                        absl::string_view default_value) const;

  // Nullopt when the flag was not given, InvalidArgument when its value is not
  // of the type (and at least `minimum`).
  absl::StatusOr<std::optional<int64_t>> GetInteger(absl::string_view name,
                                                    int64_t minimum) const;
  absl::StatusOr<std::optional<double>> GetNumber(absl::string_view name) const;
  // More than 0.
  absl::StatusOr<std::optional<absl::Duration>> GetDuration(
      absl::string_view name) const;
  // Nullopt, or the index of the value in `choices`.
  absl::StatusOr<std::optional<size_t>> GetChoice(
      absl::string_view name, const std::vector<std::string>& choices) const;

 private:
  std::optional<std::string> Find(absl::string_view name) const;

  bool help_ = false;
  std::map<std::string, std::string, std::less<>> values_;
};

// The flags as an aligned list for --help.
std::string FormatFlags(const std::vector<FlagSpec>& flags);

}  // namespace attention::cli

#endif  // ATTENTION_CLIENT_CLI_ARGUMENTS_H_
