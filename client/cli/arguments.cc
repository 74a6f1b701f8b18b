#include "client/cli/arguments.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace attention::cli {
namespace {

// Column at which help texts start.
constexpr size_t kHelpColumn = 26;

template <typename... Parts>
absl::Status Wrong(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

}  // namespace

absl::StatusOr<Arguments> Arguments::Parse(
    const std::vector<FlagSpec>& flags, const std::vector<std::string>& args) {
  Arguments result;
  for (const std::string& arg : args) {
    if (arg == "--help" || arg == "-h") {
      result.help_ = true;
      return result;
    }
  }
  for (size_t i = 0; i < args.size(); ++i) {
    if (!absl::StartsWith(args[i], "--")) {
      return Wrong("\"", args[i], "\" is not a flag");
    }
    const std::string text = args[i].substr(2);
    const size_t equals = text.find('=');
    const std::string name = text.substr(0, equals);
    const auto flag =
        std::find_if(flags.begin(), flags.end(),
                     [&](const FlagSpec& f) { return f.name == name; });
    if (flag == flags.end()) return Wrong("there is no flag --", name);
    std::string value;
    if (flag->placeholder.empty()) {
      if (equals != std::string::npos) {
        return Wrong("--", name, " takes no value");
      }
    } else if (equals != std::string::npos) {
      value = text.substr(equals + 1);
    } else if (i + 1 < args.size()) {
      value = args[++i];
    } else {
      return Wrong("--", name, " needs a value: --", name, "=",
                   flag->placeholder);
    }
    if (!result.values_.emplace(name, value).second) {
      return Wrong("--", name, " is given twice");
    }
  }
  return result;
}

std::optional<std::string> Arguments::Find(absl::string_view name) const {
  const auto it = values_.find(std::string(name));
  if (it == values_.end()) return std::nullopt;
  return it->second;
}

bool Arguments::Has(absl::string_view name) const {
  return Find(name).has_value();
}

std::string Arguments::GetString(absl::string_view name,
                                 absl::string_view default_value) const {
  return Find(name).value_or(std::string(default_value));
}

absl::StatusOr<std::optional<int64_t>> Arguments::GetInteger(
    absl::string_view name, int64_t minimum) const {
  const auto text = Find(name);
  if (!text.has_value()) return std::nullopt;
  int64_t value = 0;
  if (!absl::SimpleAtoi(*text, &value) || value < minimum) {
    return Wrong("--", name, " must be an integer of at least ", minimum,
                 "; got \"", *text, "\"");
  }
  return value;
}

absl::StatusOr<std::optional<double>> Arguments::GetNumber(
    absl::string_view name) const {
  const auto text = Find(name);
  if (!text.has_value()) return std::nullopt;
  double value = 0;
  if (!absl::SimpleAtod(*text, &value) || !std::isfinite(value)) {
    return Wrong("--", name, " must be a finite number; got \"", *text, "\"");
  }
  return value;
}

absl::StatusOr<std::optional<absl::Duration>> Arguments::GetDuration(
    absl::string_view name) const {
  const auto text = Find(name);
  if (!text.has_value()) return std::nullopt;
  absl::Duration value;
  if (!absl::ParseDuration(*text, &value) || value <= absl::ZeroDuration()) {
    return Wrong("--", name,
                 " must be a time of more than 0, such as 30s; got \"", *text,
                 "\"");
  }
  return value;
}

absl::StatusOr<std::optional<size_t>> Arguments::GetChoice(
    absl::string_view name, const std::vector<std::string>& choices) const {
  const auto text = Find(name);
  if (!text.has_value()) return std::nullopt;
  const auto it = std::find(choices.begin(), choices.end(), *text);
  if (it == choices.end()) {
    return Wrong("--", name, " must be one of ", absl::StrJoin(choices, ", "),
                 "; got \"", *text, "\"");
  }
  return static_cast<size_t>(it - choices.begin());
}

std::string FormatFlags(const std::vector<FlagSpec>& flags) {
  std::string result;
  for (const FlagSpec& flag : flags) {
    std::string line = absl::StrCat("  --", flag.name);
    if (!flag.placeholder.empty())
      absl::StrAppend(&line, "=", flag.placeholder);
    for (const absl::string_view help : absl::StrSplit(flag.help, '\n')) {
      if (line.size() + 2 > kHelpColumn) {
        absl::StrAppend(&result, line, "\n");
        line.clear();
      }
      line.resize(kHelpColumn, ' ');
      absl::StrAppend(&result, line, help, "\n");
      line.clear();
    }
  }
  return result;
}

}  // namespace attention::cli
