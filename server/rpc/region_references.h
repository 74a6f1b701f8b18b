// Tensors of a request that lie in registered regions instead of the message.
#ifndef ATTENTION_SERVER_RPC_REGION_REFERENCES_H_
#define ATTENTION_SERVER_RPC_REGION_REFERENCES_H_

#include <cstddef>

#include "absl/status/status.h"
#include "server/regions/region_registry.h"
#include "server/rpc/request_scanner.h"

namespace attention {

// Makes the references of the metadata the request's payloads and targets, sets
// the device that it requires because of them, and renews the leases of their
// regions. `registry` is null when regions are off. Messages name the field.
// Errors:
//   INVALID_ARGUMENT     a range is not inside its region; a tensor is given
//                        both ways; a target for a result not asked for; in
//                        memory of GPUs: a tensor is not aligned to its
//                        elements, two have tensors, a result overlaps others
//   NOT_FOUND            the token's owner has no such region
//   FAILED_PRECONDITION  the region's object has become too small
//   UNIMPLEMENTED        regions are off
absl::Status ResolveReferences(RegionRegistry* registry,
                               ScannedRequest& request);

// Of the inputs that lie in regions.
size_t ReferencedBytes(const ScannedRequest& request);

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_REGION_REFERENCES_H_
