#include "server/rpc/attention_service.h"

#include <memory>
#include <string>
#include <utility>

#include "server/rpc/append_stream.h"
#include "server/rpc/compute_call.h"
#include "server/rpc/decode_stream.h"
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

grpc::ServerUnaryReactor* AttentionService::ComputeAttention(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return UnaryCall::Start<ComputeCall>(context, request, response,
                                       &environment_);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>*
AttentionService::StreamAttention(grpc::CallbackServerContext* context) {
  return StreamCall::Start(context, &environment_, &streams_);
}

void AttentionService::EndIdleStreams() {
  streams_.EndIdleSince(environment_.clock->Now() - stream_idle_timeout_);
}

void AttentionService::EndStreamsForDrain() { streams_.Drain(); }

void AttentionService::TurnCallsAway() { environment_.gate.Close(); }

template <typename Handle>
grpc::ServerUnaryReactor* AttentionService::Answer(
    grpc::CallbackServerContext* context, const Handle& handle) {
  const absl::StatusOr<std::string> tenant = TenantOf(*context);
  const absl::Status status = environment_.gate.is_closed() ? DrainingStatus()
                              : tenant.ok()                 ? handle(*tenant)
                                                            : tenant.status();
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(status.ok() ? grpc::Status::OK
                              : RefusalOf(status, environment_, *context));
  return reactor;
}

grpc::ServerUnaryReactor* AttentionService::GetServerInfo(
    grpc::CallbackServerContext* context, const v1::GetServerInfoRequest*,
    v1::GetServerInfoResponse* response) {
  return Answer(context, [&](const std::string&) {
    *response = server_info_;
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AttentionService::RegisterSharedMemoryRegion(
    grpc::CallbackServerContext* context,
    const v1::RegisterSharedMemoryRegionRequest* request,
    v1::RegisterSharedMemoryRegionResponse* response) {
  return Answer(context, [&](const std::string&) {
    return RegisterRegion(environment_.regions, *request, *response);
  });
}

grpc::ServerUnaryReactor* AttentionService::RegisterCudaMemoryRegion(
    grpc::CallbackServerContext* context,
    const v1::RegisterCudaMemoryRegionRequest* request,
    v1::RegisterCudaMemoryRegionResponse* response) {
  return Answer(context, [&](const std::string&) {
    return RegisterRegion(environment_.regions, *request, *response);
  });
}

grpc::ServerUnaryReactor* AttentionService::UnregisterSharedMemoryRegion(
    grpc::CallbackServerContext* context,
    const v1::UnregisterSharedMemoryRegionRequest* request,
    v1::UnregisterSharedMemoryRegionResponse*) {
  return Answer(context, [&](const std::string&) {
    return UnregisterRegion(environment_.regions, *request);
  });
}

grpc::ServerUnaryReactor* AttentionService::ListSharedMemoryRegions(
    grpc::CallbackServerContext* context,
    const v1::ListSharedMemoryRegionsRequest* request,
    v1::ListSharedMemoryRegionsResponse* response) {
  return Answer(context, [&](const std::string&) {
    return ListRegions(environment_.regions, *request, *response);
  });
}

grpc::ServerUnaryReactor* AttentionService::AppendKeysValues(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return UnaryCall::Start<StepCall>(context, request, response, &environment_,
                                    StepCall::Kind::kAppend);
}

grpc::ServerUnaryReactor* AttentionService::AttendSession(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return UnaryCall::Start<StepCall>(context, request, response, &environment_,
                                    StepCall::Kind::kAttend);
}

grpc::ServerUnaryReactor* AttentionService::Decode(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return UnaryCall::Start<StepCall>(context, request, response, &environment_,
                                    StepCall::Kind::kDecode);
}

grpc::ServerReadReactor<grpc::ByteBuffer>*
AttentionService::StreamAppendKeysValues(grpc::CallbackServerContext* context,
                                         grpc::ByteBuffer* response) {
  return AppendStream::Start(context, response, &environment_, &streams_);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>*
AttentionService::StreamDecode(grpc::CallbackServerContext* context) {
  return DecodeStream::Start(context, &environment_, &streams_);
}

template <typename Request, typename Response>
grpc::ServerUnaryReactor* AttentionService::HandleSession(
    grpc::CallbackServerContext* context, const Request& request,
    Response& response) {
  return Answer(context, [&](const std::string& owner) {
    return SessionCalls(environment_.sessions, environment_.session_defaults,
                        environment_.device_names, owner)
        .Handle(request, response);
  });
}

grpc::ServerUnaryReactor* AttentionService::CreateSession(
    grpc::CallbackServerContext* context,
    const v1::CreateSessionRequest* request, v1::CreateSessionResponse* response) {
  return HandleSession(context, *request, *response);
}

grpc::ServerUnaryReactor* AttentionService::GetSession(
    grpc::CallbackServerContext* context,
    const v1::GetSessionRequest* request, v1::GetSessionResponse* response) {
  return HandleSession(context, *request, *response);
}

grpc::ServerUnaryReactor* AttentionService::ListSessions(
    grpc::CallbackServerContext* context,
    const v1::ListSessionsRequest* request, v1::ListSessionsResponse* response) {
  return HandleSession(context, *request, *response);
}

grpc::ServerUnaryReactor* AttentionService::DeleteSession(
    grpc::CallbackServerContext* context,
    const v1::DeleteSessionRequest* request, v1::DeleteSessionResponse* response) {
  return HandleSession(context, *request, *response);
}

grpc::ServerUnaryReactor* AttentionService::RenewSession(
    grpc::CallbackServerContext* context,
    const v1::RenewSessionRequest* request, v1::RenewSessionResponse* response) {
  return HandleSession(context, *request, *response);
}

grpc::ServerUnaryReactor* AttentionService::ForkSession(
    grpc::CallbackServerContext* context,
    const v1::ForkSessionRequest* request, v1::ForkSessionResponse* response) {
  return HandleSession(context, *request, *response);
}

grpc::ServerUnaryReactor* AttentionService::TruncateSession(
    grpc::CallbackServerContext* context,
    const v1::TruncateSessionRequest* request, v1::TruncateSessionResponse* response) {
  return HandleSession(context, *request, *response);
}

}  // namespace attention
