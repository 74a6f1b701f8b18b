#include "server/rpc/region_calls.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/engine/error_reason.h"
#include "server/rpc/duration_proto.h"

namespace attention {
namespace {

template <typename Request>
absl::StatusOr<absl::Duration> LeaseOf(const Request& request) {
  if (!request.has_lease_duration()) return kDefaultLease;
  return ReadDuration("lease_duration", request.lease_duration());
}

}  // namespace

absl::Status RegionsAreOff() {
  return WithReason(
      absl::UnimplementedError("regions are off; start the server with "
                               "--allow_shared_memory or --allow_cuda_ipc"),
      error_reason::kUnsupported);
}

absl::Status RegisterRegion(
    RegionRegistry* registry,
    const v1::RegisterSharedMemoryRegionRequest& request,
    v1::RegisterSharedMemoryRegionResponse& response) {
  if (registry == nullptr) return RegionsAreOff();
  const absl::StatusOr<absl::Duration> lease = LeaseOf(request);
  if (!lease.ok()) return lease.status();
  const auto region = registry->Register(request.owner_token(),
                                         {.name = request.region_name(),
                                          .object_name = request.object_name(),
                                          .byte_offset = request.byte_offset(),
                                          .byte_size = request.byte_size(),
                                          .lease = *lease});
  if (!region.ok()) return region.status();
  *response.mutable_lease_duration() = ToProto(*lease);
  response.set_is_pinned((*region)->direct_memory().is_pinned());
  return absl::OkStatus();
}

absl::Status RegisterRegion(RegionRegistry* registry,
                            const v1::RegisterCudaMemoryRegionRequest& request,
                            v1::RegisterCudaMemoryRegionResponse& response) {
  if (registry == nullptr) return RegionsAreOff();
  const absl::StatusOr<absl::Duration> lease = LeaseOf(request);
  if (!lease.ok()) return lease.status();
  const auto region = registry->Register(
      request.owner_token(),
      {.name = request.region_name(),
       .cuda = CudaMemory{.handle = request.memory_handle(),
                          .device_uuid = request.device_uuid()},
       .byte_offset = request.byte_offset(),
       .byte_size = request.byte_size(),
       .lease = *lease});
  if (!region.ok()) return region.status();
  *response.mutable_lease_duration() = ToProto(*lease);
  response.set_device_name(
      absl::StrCat("cuda:", (*region)->direct_memory().device));
  return absl::OkStatus();
}

absl::Status UnregisterRegion(
    RegionRegistry* registry,
    const v1::UnregisterSharedMemoryRegionRequest& request) {
  if (registry == nullptr) return RegionsAreOff();
  return registry->Unregister(request.owner_token(), request.region_name());
}

absl::Status ListRegions(RegionRegistry* registry,
                         const v1::ListSharedMemoryRegionsRequest& request,
                         v1::ListSharedMemoryRegionsResponse& response) {
  if (registry == nullptr) return RegionsAreOff();
  for (const RegionRegistry::Listed& listed :
       registry->List(request.owner_token())) {
    v1::SharedMemoryRegion& region = *response.add_regions();
    region.set_region_name(listed.description.name);
    region.set_object_name(listed.description.object_name);
    if (listed.description.cuda.has_value()) {
      region.set_device_uuid(listed.description.cuda->device_uuid);
    }
    region.set_byte_offset(listed.description.byte_offset);
    region.set_byte_size(listed.description.byte_size);
    *region.mutable_remaining_duration() = ToProto(listed.remaining);
    region.set_is_pinned(listed.direct.is_pinned());
  }
  return absl::OkStatus();
}

}  // namespace attention
