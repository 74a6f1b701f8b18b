// The gRPC service: validate, enqueue, translate.
//
// ComputeAttention and StreamAttention are served below protobuf's generated
// messages, on the bytes as gRPC delivers and sends them, so that tensors are
// neither copied into a message nor out of one. On the wire they are the methods
// of attention.proto.
#ifndef ATTENTION_SERVER_RPC_ATTENTION_SERVICE_H_
#define ATTENTION_SERVER_RPC_ATTENTION_SERVICE_H_

#include <cstdint>

#include "absl/synchronization/notification.h"
#include "attention/v1/attention.grpc.pb.h"
#include "server/metrics/metrics.h"
#include "server/rpc/call_support.h"
#include "server/rpc/stream_table.h"
#include "server/rpc/work_builder.h"
#include "server/scheduling/scheduler.h"

namespace attention {

// Those that register, forget and list regions.
using RegionCallbackMethods =
    v1::AttentionService::WithCallbackMethod_RegisterSharedMemoryRegion<
        v1::AttentionService::WithCallbackMethod_RegisterCudaMemoryRegion<
            v1::AttentionService::
                WithCallbackMethod_UnregisterSharedMemoryRegion<
                    v1::AttentionService::
                        WithCallbackMethod_ListSharedMemoryRegions<
                            v1::AttentionService::Service>>>>;

// Thread-safe. Destroy it after the grpc::Server that it is registered with, and
// before the scheduler and the devices.
class AttentionService final
    : public v1::AttentionService::WithRawCallbackMethod_ComputeAttention<
          v1::AttentionService::WithRawCallbackMethod_StreamAttention<
              v1::AttentionService::WithCallbackMethod_GetServerInfo<
                  RegionCallbackMethods>>> {
 public:
  struct Options {
    RequestLimits limits;
    // Null: regions are off. Outlives the service.
    RegionRegistry* regions = nullptr;
    // Outlives the service.
    UploadRegistry* uploads = nullptr;
    Clock* clock = &Clock::Real();
    // A stream on which nothing moves for longer is ended, unless it is computed.
    absl::Duration stream_idle_timeout = absl::Seconds(30);
    v1::GetServerInfoResponse server_info;  // the answer to GetServerInfo
  };

  AttentionService(Options options, Scheduler* scheduler, Metrics* metrics);

  // Waits until no answer holds memory of a device's pool any more.
  ~AttentionService() override;

  struct CallCounts {
    int64_t started = 0;
    int64_t finished = 0;
  };
  // Of ComputeAttention and StreamAttention, since the server started.
  CallCounts call_counts() const;

  // To be called now and then.
  void EndIdleStreams();

  grpc::ServerUnaryReactor* ComputeAttention(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
      grpc::ByteBuffer* response) override;

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StreamAttention(
      grpc::CallbackServerContext* context) override;

  grpc::ServerUnaryReactor* GetServerInfo(
      grpc::CallbackServerContext* context,
      const v1::GetServerInfoRequest* request,
      v1::GetServerInfoResponse* response) override;

  grpc::ServerUnaryReactor* RegisterSharedMemoryRegion(
      grpc::CallbackServerContext* context,
      const v1::RegisterSharedMemoryRegionRequest* request,
      v1::RegisterSharedMemoryRegionResponse* response) override;

  grpc::ServerUnaryReactor* RegisterCudaMemoryRegion(
      grpc::CallbackServerContext* context,
      const v1::RegisterCudaMemoryRegionRequest* request,
      v1::RegisterCudaMemoryRegionResponse* response) override;

  grpc::ServerUnaryReactor* UnregisterSharedMemoryRegion(
      grpc::CallbackServerContext* context,
      const v1::UnregisterSharedMemoryRegionRequest* request,
      v1::UnregisterSharedMemoryRegionResponse* response) override;

  grpc::ServerUnaryReactor* ListSharedMemoryRegions(
      grpc::CallbackServerContext* context,
      const v1::ListSharedMemoryRegionsRequest* request,
      v1::ListSharedMemoryRegionsResponse* response) override;

 private:
  const v1::GetServerInfoResponse server_info_;
  const absl::Duration stream_idle_timeout_;
  absl::Notification memory_released_;
  CallEnvironment environment_;
  StreamTable streams_;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_ATTENTION_SERVICE_H_
