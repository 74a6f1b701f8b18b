#include "server/rpc/attention_service.h"

#include <memory>
#include <string>
#include <utility>

#include "server/rpc/append_stream.h"
#include "server/rpc/compute_call.h"
#include "server/rpc/compute_message.h"
#include "server/rpc/decode_message.h"
#include "server/rpc/pipelined_stream.h"
#include "server/rpc/region_calls.h"
#include "server/rpc/step_call.h"
#include "server/rpc/stream_call.h"
#include "server/scheduling/exit_status.h"

namespace attention {

AttentionService::AttentionService(Options options, Scheduler* scheduler,
                                   Metrics* metrics)
    : server_info_(std::move(options.server_info)),
      stream_idle_timeout_(options.stream_idle_timeout) {
  environment_.limits = options.limits;
  environment_.regions = options.regions;
  environment_.uploads = options.uploads;
  environment_.sessions = options.sessions;
  environment_.session_defaults = options.session_defaults;
  for (const v1::DeviceInfo& device : server_info_.devices()) {
    environment_.device_names.push_back(device.name());
  }
  environment_.clock = options.clock;
  environment_.scheduler = scheduler;
  environment_.metrics = metrics;
  environment_.keep_alive = std::shared_ptr<void>(
      &memory_released_,
      [](void* p) { static_cast<absl::Notification*>(p)->Notify(); });
}

AttentionService::~AttentionService() {
  environment_.keep_alive.reset();
  memory_released_.WaitForNotification();
}

AttentionService::CallCounts AttentionService::call_counts() const {
  return {environment_.started_calls.load(std::memory_order_relaxed),
          environment_.finished_calls.load(std::memory_order_relaxed)};
}

void AttentionService::EndIdleStreams() {
  // It does not show whether a chunk is on its way.
  streams_.EndIdleSince(environment_.clock->Now() - stream_idle_timeout_ -
                        TransferTime(kMaxChunkBytes));
}

void AttentionService::EndStreamsForDrain() { streams_.Drain(); }

void AttentionService::TurnCallsAway() { environment_.gate.Close(); }

template <typename Handle>
grpc::Status AttentionService::Answer(grpc::ServerContext& context,
                                      const Handle& handle) {
  const absl::StatusOr<std::string> tenant = TenantOf(context);
  const absl::Status status = environment_.gate.is_closed() ? DrainingStatus()
                              : tenant.ok()                 ? handle(*tenant)
                                                            : tenant.status();
  return status.ok() ? grpc::Status::OK
                     : RefusalOf(status, environment_, context);
}

MethodTable AttentionService::Methods() {
  const auto step = [this](StepCall::Kind kind) {
    return [this, kind](ServerCall* call) {
      UnaryCall::Start<StepCall>(call, &environment_, kind);
    };
  };
  const std::string prefix =
      std::string("/") + v1::AttentionService::service_full_name() + "/";
  return {
      {prefix + "ComputeAttention",
       [this](ServerCall* call) {
         UnaryCall::Start<ComputeCall>(call, &environment_);
       }},
      {prefix + "StreamComputeAttention",
       [this](ServerCall* call) {
         PipelinedStream::Start<ComputeMessage>(call, &environment_, &streams_);
       }},
      {prefix + "StreamAttention",
       [this](ServerCall* call) {
         StreamCall::Start(call, &environment_, &streams_);
       }},
      {prefix + "AppendKeysValues", step(StepCall::Kind::kAppend)},
      {prefix + "StreamAppendKeysValues",
       [this](ServerCall* call) {
         AppendStream::Start(call, &environment_, &streams_);
       }},
      {prefix + "AttendSession", step(StepCall::Kind::kAttend)},
      {prefix + "Decode", step(StepCall::Kind::kDecode)},
      {prefix + "StreamDecode", [this](ServerCall* call) {
         PipelinedStream::Start<DecodeMessage>(call, &environment_, &streams_);
       }}};
}

grpc::Status AttentionService::GetServerInfo(
    grpc::ServerContext* context, const v1::GetServerInfoRequest*,
    v1::GetServerInfoResponse* response) {
  return Answer(*context, [&](const std::string&) {
    *response = server_info_;
    return absl::OkStatus();
  });
}

grpc::Status AttentionService::RegisterSharedMemoryRegion(
    grpc::ServerContext* context,
    const v1::RegisterSharedMemoryRegionRequest* request,
    v1::RegisterSharedMemoryRegionResponse* response) {
  return Answer(*context, [&](const std::string&) {
    return RegisterRegion(environment_.regions, *request, *response);
  });
}

grpc::Status AttentionService::RegisterCudaMemoryRegion(
    grpc::ServerContext* context,
    const v1::RegisterCudaMemoryRegionRequest* request,
    v1::RegisterCudaMemoryRegionResponse* response) {
  return Answer(*context, [&](const std::string&) {
    return RegisterRegion(environment_.regions, *request, *response);
  });
}

grpc::Status AttentionService::UnregisterSharedMemoryRegion(
    grpc::ServerContext* context,
    const v1::UnregisterSharedMemoryRegionRequest* request,
    v1::UnregisterSharedMemoryRegionResponse*) {
  return Answer(*context, [&](const std::string&) {
    return UnregisterRegion(environment_.regions, *request);
  });
}

grpc::Status AttentionService::ListSharedMemoryRegions(
    grpc::ServerContext* context,
    const v1::ListSharedMemoryRegionsRequest* request,
    v1::ListSharedMemoryRegionsResponse* response) {
  return Answer(*context, [&](const std::string&) {
    return ListRegions(environment_.regions, *request, *response);
  });
}

template <typename Request, typename Response>
grpc::Status AttentionService::HandleSession(grpc::ServerContext& context,
                                             const Request& request,
                                             Response& response) {
  return Answer(context, [&](const std::string& owner) {
    return SessionCalls(environment_.sessions, environment_.session_defaults,
                        environment_.device_names, owner)
        .Handle(request, response);
  });
}

grpc::Status AttentionService::CreateSession(
    grpc::ServerContext* context, const v1::CreateSessionRequest* request,
    v1::CreateSessionResponse* response) {
  return HandleSession(*context, *request, *response);
}

grpc::Status AttentionService::GetSession(grpc::ServerContext* context,
                                          const v1::GetSessionRequest* request,
                                          v1::GetSessionResponse* response) {
  return HandleSession(*context, *request, *response);
}

grpc::Status AttentionService::ListSessions(
    grpc::ServerContext* context, const v1::ListSessionsRequest* request,
    v1::ListSessionsResponse* response) {
  return HandleSession(*context, *request, *response);
}

grpc::Status AttentionService::DeleteSession(
    grpc::ServerContext* context, const v1::DeleteSessionRequest* request,
    v1::DeleteSessionResponse* response) {
  return HandleSession(*context, *request, *response);
}

grpc::Status AttentionService::RenewSession(
    grpc::ServerContext* context, const v1::RenewSessionRequest* request,
    v1::RenewSessionResponse* response) {
  return HandleSession(*context, *request, *response);
}

grpc::Status AttentionService::ForkSession(
    grpc::ServerContext* context, const v1::ForkSessionRequest* request,
    v1::ForkSessionResponse* response) {
  return HandleSession(*context, *request, *response);
}

grpc::Status AttentionService::TruncateSession(
    grpc::ServerContext* context, const v1::TruncateSessionRequest* request,
    v1::TruncateSessionResponse* response) {
  return HandleSession(*context, *request, *response);
}

}  // namespace attention
