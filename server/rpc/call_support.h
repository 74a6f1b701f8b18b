// What the calls that compute, with one message or with streams, have in
// common.
#ifndef ATTENTION_SERVER_RPC_CALL_SUPPORT_H_
#define ATTENTION_SERVER_RPC_CALL_SUPPORT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "grpcpp/support/status.h"
#include "server/logging/log.h"
#include "server/metrics/metrics.h"
#include "server/regions/region_registry.h"
#include "server/rpc/call_gate.h"
#include "server/rpc/session_calls.h"
#include "server/rpc/work_builder.h"
#include "server/scheduling/clock.h"
#include "server/scheduling/scheduler.h"
#include "server/sessions/session_registry.h"
#include "server/uploads/upload_registry.h"

namespace attention {

// What calls share. Outlives them.
struct CallEnvironment {
  RequestLimits limits;
  RegionRegistry* regions = nullptr;  // null: shared memory is off
  UploadRegistry* uploads = nullptr;
  SessionRegistry* sessions = nullptr;  // null: sessions are off
  SessionDefaults session_defaults;
  std::vector<std::string> device_names;
  Scheduler* scheduler = nullptr;
  Metrics* metrics = nullptr;
  Clock* clock = nullptr;
  RateLimitedLog refusals;
  CallGate gate;
  std::atomic<int64_t> started_calls{0};
  std::atomic<int64_t> finished_calls{0};
  // Held by everything that holds memory of the devices' pools.
  std::shared_ptr<void> keep_alive;
};

// A message as gRPC delivered it: slices of at most some 64 KiB.
struct WireMessage {
  explicit WireMessage(const grpc::ByteBuffer& message);

  std::vector<grpc::Slice> slices;
  std::vector<absl::string_view> fragments;
};

absl::Time DeadlineOf(const grpc::ServerContextBase& context);

// Who the caller says it is; empty: nobody in particular. INVALID_ARGUMENT when
// the name is too long or there are several.
absl::StatusOr<std::string> TenantOf(const grpc::ServerContextBase& context);

// What became of a call that its caller has ended.
absl::Status CallerLeft(const grpc::ServerContextBase& context);

// After which a request that was refused with `status` is worth another
// attempt; unset: none is, as it stands.
std::optional<absl::Duration> RetryDelayOf(const absl::Status& status,
                                           const CallEnvironment& environment);

// Logs the error unless it is the caller's decision.
void LogRefusal(const absl::Status& status, CallEnvironment& environment);

// Logs the error, and translates it, with a
// delay after which another attempt is worth it.
grpc::Status RefusalOf(const absl::Status& status, CallEnvironment& environment,
                       grpc::ServerContextBase& context);

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_CALL_SUPPORT_H_
