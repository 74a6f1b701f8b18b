#include "client/loadtest/given_flags.h"

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace attention::loadtest {

absl::Status Wrong(absl::string_view flag, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, " ", what));
}

GivenFlags::GivenFlags(const std::vector<std::string>& arguments) {
  for (absl::string_view argument : arguments) {
    if (argument == "--") break;
    if (!absl::ConsumePrefix(&argument, "-")) continue;
    absl::ConsumePrefix(&argument, "-");
    const absl::string_view name = argument.substr(0, argument.find('='));
    names_.emplace(name);
  }
}

bool GivenFlags::Has(absl::string_view flag) const {
  if (names_.count(std::string(flag)) > 0) return true;
  const absl::CommandLineFlag* const found = absl::FindCommandLineFlag(flag);
  return found->CurrentValue() != found->DefaultValue();
}

absl::Status GivenFlags::Refuse(std::initializer_list<absl::string_view> flags,
                                absl::string_view of_what) const {
  for (const absl::string_view flag : flags) {
    if (!Has(flag)) continue;
    return Wrong(flag, absl::StrCat("is ", of_what));
  }
  return absl::OkStatus();
}

}  // namespace attention::loadtest
