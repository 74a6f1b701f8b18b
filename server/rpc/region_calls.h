// The calls that register, forget and list regions: between messages and the
// registry, which checks and decides.
#ifndef ATTENTION_SERVER_RPC_REGION_CALLS_H_
#define ATTENTION_SERVER_RPC_REGION_CALLS_H_

#include "absl/status/status.h"
#include "attention/v1/attention.pb.h"
#include "server/regions/region_registry.h"

namespace attention {

// UNIMPLEMENTED (UNSUPPORTED) that says which flag is missing: what the calls
// below return when `registry` is null.
absl::Status RegionsAreOff();

// Errors are RegionRegistry::Register's.
absl::Status RegisterRegion(
    RegionRegistry* registry,
    const v1::RegisterSharedMemoryRegionRequest& request,
    v1::RegisterSharedMemoryRegionResponse& response);

absl::Status RegisterRegion(RegionRegistry* registry,
                            const v1::RegisterCudaMemoryRegionRequest& request,
                            v1::RegisterCudaMemoryRegionResponse& response);

// Errors are RegionRegistry::Unregister's.
absl::Status UnregisterRegion(
    RegionRegistry* registry,
    const v1::UnregisterSharedMemoryRegionRequest& request);

absl::Status ListRegions(RegionRegistry* registry,
                         const v1::ListSharedMemoryRegionsRequest& request,
                         v1::ListSharedMemoryRegionsResponse& response);

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_REGION_CALLS_H_
