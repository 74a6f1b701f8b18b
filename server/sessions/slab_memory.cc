#include "server/sessions/slab_memory.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/error_reason.h"

namespace attention {
namespace {

absl::Status Full(absl::string_view message) {
  return WithReason(absl::ResourceExhaustedError(message),
                    error_reason::kCacheFull);
}

}  // namespace

int64_t SlabMemory::RoomFor(size_t slab_bytes) const {
  const size_t free = budget_bytes_ - used_bytes_;
  return static_cast<int64_t>(free / slab_bytes + spare_.count(slab_bytes));
}

absl::StatusOr<Block> SlabMemory::Get(size_t slab_bytes) {
  if (RoomFor(slab_bytes) == 0) {
    return Full(absl::StrCat("sessions have ", used_bytes_, " of ",
                             budget_bytes_, " bytes on this device"));
  }
  if (const auto spare = spare_.find(slab_bytes); spare != spare_.end()) {
    Block slab = std::move(spare->second);
    spare_.erase(spare);
    return slab;
  }
  absl::StatusOr<Block> slab = pool_.Allocate(slab_bytes);
  if (!slab.ok()) return Full(slab.status().message());
  used_bytes_ += slab_bytes;
  return slab;
}

void SlabMemory::Put(Block slab) {
  const size_t bytes = slab.size();
  spare_.emplace(bytes, std::move(slab));
}

void SlabMemory::ReleaseSpare() {
  for (const auto& [bytes, slab] : spare_) used_bytes_ -= bytes;
  spare_.clear();
}

}  // namespace attention
