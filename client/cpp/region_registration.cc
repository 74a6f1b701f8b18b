#include "client/cpp/region_registration.h"

#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "attention/v1/attention.pb.h"

namespace attention {
namespace {

constexpr char kUnregisterMethod[] =
    "/attention.v1.AttentionService/UnregisterSharedMemoryRegion";
// A server that is gone must not hold up a destructor.
constexpr absl::Duration kUnregisterTimeout = absl::Seconds(5);

}  // namespace

absl::Status CheckRegionOptions(size_t size_bytes, absl::Duration lease) {
  if (size_bytes == 0 ||
      size_bytes > static_cast<size_t>(std::numeric_limits<int64_t>::max())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "size_bytes must be more than 0 and below 2^63; got ", size_bytes));
  }
  if (lease <= absl::ZeroDuration() || lease > absl::Hours(1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("lease must be more than 0 and at most 1h; got ",
                     absl::FormatDuration(lease)));
  }
  return absl::OkStatus();
}

RegionRegistration::~RegionRegistration() {
  if (data_ == nullptr) return;
  table_.Remove(data_);
  v1::UnregisterSharedMemoryRegionRequest request;
  request.set_owner_token(table_.owner_token());
  request.set_region_name(name_);
  // Without it the lease ends.
  runner_.Run({kUnregisterMethod, Serialize(request), kUnregisterTimeout})
      .IgnoreError();
}

void RegionRegistration::Use(const void* data, size_t size_bytes,
                             bool in_gpu_memory) {
  data_ = data;
  table_.Add(data, size_bytes, name_, in_gpu_memory);
}

}  // namespace attention
