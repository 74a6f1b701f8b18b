// Which flags a command line gives, so that none is ignored without a word.
#ifndef ATTENTION_CLIENT_LOADTEST_GIVEN_FLAGS_H_
#define ATTENTION_CLIENT_LOADTEST_GIVEN_FLAGS_H_

#include <initializer_list>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace attention::loadtest {

// InvalidArgument "--flag <what>".
absl::Status Wrong(absl::string_view flag, absl::string_view what);

class GivenFlags {
 public:
  // The flags have been parsed.
  explicit GivenFlags(const std::vector<std::string>& arguments);

  // Whether the arguments name the flag, with whatever value, or it has another
  // value than its default (then it may come from --flagfile).
  bool Has(absl::string_view flag) const;

  // InvalidArgument "--flag is <of what>" for the first of the flags that is
  // given.
  absl::Status Refuse(std::initializer_list<absl::string_view> flags,
                      absl::string_view of_what) const;

 private:
  std::set<std::string> names_;
};

}  // namespace attention::loadtest

#endif  // ATTENTION_CLIENT_LOADTEST_GIVEN_FLAGS_H_
