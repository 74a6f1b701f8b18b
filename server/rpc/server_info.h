// What the server tells about itself.
#ifndef ATTENTION_SERVER_RPC_SERVER_INFO_H_
#define ATTENTION_SERVER_RPC_SERVER_INFO_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "attention/v1/attention.pb.h"
#include "server/engine/device.h"
#include "server/regions/region_registry.h"
#include "server/rpc/request_decoder.h"
#include "server/rpc/session_calls.h"
#include "server/scheduling/scheduler.h"
#include "server/sessions/session_registry.h"

namespace attention {

// `devices` is not empty; all are of one backend. `regions` is null when they
// are off.
v1::GetServerInfoResponse MakeServerInfo(const std::string& version,
                                         const std::vector<Device*>& devices,
                                         const RequestLimits& limits,
                                         const Scheduler::Options& scheduling,
                                         absl::Duration max_upload_lease,
                                         const RegionRegistry* regions);

// Adds what there is to know about sessions, unless they are off.
void AddSessionInfo(const SessionRegistry::Options& options,
                    const SessionDefaults& defaults, size_t device_bytes,
                    v1::GetServerInfoResponse& info);

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_SERVER_INFO_H_
