#include "server/rpc/attention_service.h"

#include <memory>
#include <optional>
#include <utility>

#include "server/rpc/compute_call.h"
#include "server/rpc/region_calls.h"
#include "server/rpc/status_translation.h"
#include "server/rpc/stream_call.h"

namespace attention {
namespace {

grpc::ServerUnaryReactor* Finish(grpc::CallbackServerContext* context,
                                 const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status, std::nullopt));
  return reactor;
}

}  // namespace

AttentionService::AttentionService(Options options, Scheduler* scheduler,
                                   Metrics* metrics)
    : server_info_(std::move(options.server_info)),
      stream_idle_timeout_(options.stream_idle_timeout) {
  environment_.limits = options.limits;
  environment_.regions = options.regions;
  environment_.uploads = options.uploads;
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
  // gRPC keeps the request until the call ends; its memory should go earlier.
  // The object is gRPC's own and not const.
  grpc::ByteBuffer taken;
  taken.Swap(const_cast<grpc::ByteBuffer*>(request));
  return ComputeCall::Start(context, std::move(taken), response, &environment_);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>*
AttentionService::StreamAttention(grpc::CallbackServerContext* context) {
  return StreamCall::Start(context, &environment_, &streams_);
}

void AttentionService::EndIdleStreams() {
  streams_.EndIdleSince(environment_.clock->Now() - stream_idle_timeout_);
}

grpc::ServerUnaryReactor* AttentionService::GetServerInfo(
    grpc::CallbackServerContext* context, const v1::GetServerInfoRequest*,
    v1::GetServerInfoResponse* response) {
  *response = server_info_;
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* AttentionService::RegisterSharedMemoryRegion(
    grpc::CallbackServerContext* context,
    const v1::RegisterSharedMemoryRegionRequest* request,
    v1::RegisterSharedMemoryRegionResponse* response) {
  return Finish(context,
                RegisterRegion(environment_.regions, *request, *response));
}

grpc::ServerUnaryReactor* AttentionService::RegisterCudaMemoryRegion(
    grpc::CallbackServerContext* context,
    const v1::RegisterCudaMemoryRegionRequest* request,
    v1::RegisterCudaMemoryRegionResponse* response) {
  return Finish(context,
                RegisterRegion(environment_.regions, *request, *response));
}

grpc::ServerUnaryReactor* AttentionService::UnregisterSharedMemoryRegion(
    grpc::CallbackServerContext* context,
    const v1::UnregisterSharedMemoryRegionRequest* request,
    v1::UnregisterSharedMemoryRegionResponse*) {
  return Finish(context, UnregisterRegion(environment_.regions, *request));
}

grpc::ServerUnaryReactor* AttentionService::ListSharedMemoryRegions(
    grpc::CallbackServerContext* context,
    const v1::ListSharedMemoryRegionsRequest* request,
    v1::ListSharedMemoryRegionsResponse* response) {
  return Finish(context, ListRegions(environment_.regions, *request, *response));
}

}  // namespace attention
