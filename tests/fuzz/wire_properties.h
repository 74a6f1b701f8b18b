// Properties of what reads messages from the wire.
#ifndef ATTENTION_TESTS_FUZZ_WIRE_PROPERTIES_H_
#define ATTENTION_TESTS_FUZZ_WIRE_PROPERTIES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"
#include "server/engine/attention_work.h"

namespace attention::test {

// The error of a property that does not hold.
absl::Status Broken(absl::string_view what);

std::string Join(const Payload& payload);

// That bytes are refused with a code of the wire, a message and a reason.
absl::Status CheckRefusal(const absl::Status& status);

// That a scanner takes the bytes of a message if protobuf does, and otherwise
// refuses them as above. Parses them into `expected`; whether they are sound.
absl::StatusOr<bool> CheckScan(const std::string& bytes,
                               const absl::Status& scan,
                               google::protobuf::Message& expected);

// That what a scanner found, payloads included, is the message that protobuf
// finds, NaN and -0 included. Unknown fields mean nothing to the server, and
// the scanner leaves some of them out: both lose them.
absl::Status CheckFound(google::protobuf::Message& found,
                        google::protobuf::Message& expected);

}  // namespace attention::test

#endif  // ATTENTION_TESTS_FUZZ_WIRE_PROPERTIES_H_
