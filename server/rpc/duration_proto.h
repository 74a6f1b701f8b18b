// absl::Duration as google.protobuf.Duration, and back.
#ifndef ATTENTION_SERVER_RPC_DURATION_PROTO_H_
#define ATTENTION_SERVER_RPC_DURATION_PROTO_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "google/protobuf/duration.pb.h"

namespace attention {

inline google::protobuf::Duration ToProto(absl::Duration duration) {
  google::protobuf::Duration proto;
  proto.set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &duration));
  proto.set_nanos(static_cast<int32_t>(
      absl::IDivDuration(duration, absl::Nanoseconds(1), &duration)));
  return proto;
}

// A duration that a caller gave. INVALID_ARGUMENT naming `field` when it is
// none: google.protobuf.Duration bounds seconds (10,000 years) and nanos, which
// must have the same sign.
absl::StatusOr<absl::Duration> ReadDuration(
    absl::string_view field, const google::protobuf::Duration& duration);

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_DURATION_PROTO_H_
