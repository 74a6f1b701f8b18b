#include "server/rpc/duration_proto.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "server/rpc/tensor_dims.h"

namespace attention {
namespace {

constexpr int64_t kMaxSeconds = 315'576'000'000;
constexpr int64_t kMaxNanos = 999'999'999;

absl::Status CheckBound(absl::string_view field, absl::string_view part,
                        int64_t value, int64_t bound) {
  if (value >= -bound && value <= bound) return absl::OkStatus();
  return InvalidField(absl::StrCat(field, ".", part),
                      absl::StrCat("in [", -bound, ", ", bound, "]"), value);
}

}  // namespace

absl::StatusOr<absl::Duration> ReadDuration(
    absl::string_view field, const google::protobuf::Duration& duration) {
  const int64_t seconds = duration.seconds();
  const int64_t nanos = duration.nanos();
  if (auto s = CheckBound(field, "seconds", seconds, kMaxSeconds); !s.ok()) {
    return s;
  }
  if (auto s = CheckBound(field, "nanos", nanos, kMaxNanos); !s.ok()) return s;
  if ((seconds < 0 && nanos > 0) || (seconds > 0 && nanos < 0)) {
    return InvalidField(
        absl::StrCat(field, ".nanos"),
        absl::StrCat("of the same sign as its seconds, which are ", seconds),
        nanos);
  }
  return absl::Seconds(seconds) + absl::Nanoseconds(nanos);
}

}  // namespace attention
