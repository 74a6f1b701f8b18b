// absl::Duration as google.protobuf.Duration, and back.
#ifndef ATTENTION_SERVER_RPC_DURATION_PROTO_H_
#define ATTENTION_SERVER_RPC_DURATION_PROTO_H_

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

inline absl::Duration FromProto(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) +
         absl::Nanoseconds(duration.nanos());
}

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_DURATION_PROTO_H_
