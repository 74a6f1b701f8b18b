#include "server/regions/region.h"

#include "absl/strings/str_cat.h"
#include "server/engine/error_reason.h"

namespace attention {

absl::StatusOr<std::shared_ptr<const RegionRange>> RegionRange::Make(
    std::shared_ptr<const Region> region, int64_t byte_offset,
    int64_t byte_size) {
  const int64_t size = region->size_bytes();
  if (byte_offset < 0 || byte_size < 0 || byte_size > size ||
      byte_offset > size - byte_size) {
    return InvalidRequest(
        absl::StrCat("byte_offset and byte_size must be at least 0 and together "
                     "at most ",
                     size, ", the size of the region; got ", byte_offset,
                     " and ", byte_size));
  }
  if (absl::Status status = region->CheckSize(); !status.ok()) return status;
  return std::shared_ptr<const RegionRange>(
      new RegionRange(std::move(region), byte_offset, byte_size));
}

DirectMemory RegionRange::direct_memory() const {
  DirectMemory direct = region_->direct_memory();
  if (direct.kind != DirectMemory::Kind::kNone) {
    direct.address = static_cast<char*>(direct.address) + offset_;
  }
  return direct;
}

}  // namespace attention
