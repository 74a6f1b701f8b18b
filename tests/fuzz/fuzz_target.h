// What the fuzzers and the regression test have in common.
//
// A target takes any bytes, has the code under test read them, and checks the
// properties that hold whatever the bytes are. libFuzzer searches for bytes
// that break one; the regression test runs the same targets on the seeds and on
// random changes of them, with every compiler.
#ifndef ATTENTION_TESTS_FUZZ_FUZZ_TARGET_H_
#define ATTENTION_TESTS_FUZZ_FUZZ_TARGET_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace attention::test {

struct Seed {
  std::string name;  // of letters, digits and '_'
  std::string input;
  bool accepted = false;  // what the target makes of it
};

struct FuzzTarget {
  const char* name;
  // Whether the code under test took the input; an error says which property
  // does not hold.
  absl::StatusOr<bool> (*run)(absl::string_view input);
  std::vector<Seed> (*seeds)();
};

// A request on its way from the wire to a device. See request_target.cc.
extern const FuzzTarget kRequestTarget;
// A message of a stream; input as kRequestTarget's. See stream_target.cc.
extern const FuzzTarget kStreamTarget;
// A message that appends to sessions, attends to them or both; input as
// kRequestTarget's. See session_target.cc.
extern const FuzzTarget kSessionTarget;
// The reader of safetensors files.
extern const FuzzTarget kSafetensorsTarget;

// A message and its fragments as the input of a target: how many cuts, where
// they are (two bytes each, little-endian), and the message. Splits it into
// fragments, each in memory of exactly its size, so that AddressSanitizer sees
// what reads past one.
class FragmentedMessage {
 public:
  explicit FragmentedMessage(absl::string_view input);

  const std::string& message() const { return message_; }
  const std::vector<absl::string_view>& fragments() const { return fragments_; }

  // The input that is taken apart again. At most kMaxCuts.
  static std::string Input(absl::string_view message,
                           const std::vector<size_t>& cuts = {});

 private:
  static constexpr size_t kMaxCuts = 7;

  void Add(absl::string_view fragment);

  std::string message_;
  std::vector<std::unique_ptr<char[]>> memory_;
  std::vector<absl::string_view> fragments_;
};

}  // namespace attention::test

#endif  // ATTENTION_TESTS_FUZZ_FUZZ_TARGET_H_
