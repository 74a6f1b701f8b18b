// Properties of what reads messages from the wire.
#ifndef ATTENTION_TESTS_FUZZ_WIRE_PROPERTIES_H_
#define ATTENTION_TESTS_FUZZ_WIRE_PROPERTIES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"
#include "server/engine/attention_work.h"

namespace attention::test {

// The error of a property that does not hold.
absl::Status Broken(absl::string_view what);

std::string Join(const Payload& payload);

// Whether the messages are the same, NaN and -0 included. Unknown fields mean
// nothing to the server, and the scanner leaves some of them out: both lose
// them.
bool AreSame(google::protobuf::Message& a, google::protobuf::Message& b);

// That bytes are refused with a code of the wire, a message and a reason.
absl::Status CheckRefusal(const absl::Status& status);

}  // namespace attention::test

#endif  // ATTENTION_TESTS_FUZZ_WIRE_PROPERTIES_H_
