// The gRPC service: validate, enqueue, translate.
//
// Methods that compute are served below protobuf's generated messages, on the
// bytes as gRPC delivers and sends them, so that tensors are neither copied
// into a message nor out of one. On the wire they are the methods of
// attention.proto.
#ifndef ATTENTION_SERVER_RPC_ATTENTION_SERVICE_H_
#define ATTENTION_SERVER_RPC_ATTENTION_SERVICE_H_

#include <cstdint>

#include "absl/synchronization/notification.h"
#include "attention/v1/attention.pb.h"
#include "server/metrics/metrics.h"
#include "server/rpc/call_support.h"
#include "server/rpc/service_methods.h"
#include "server/rpc/stream_table.h"
#include "server/rpc/work_builder.h"
#include "server/scheduling/scheduler.h"
#include "server/transport/call_acceptor.h"

namespace attention {

// Thread-safe. Destroy it after the grpc::Server that it is registered with,
// and before the scheduler and the devices.
class AttentionService final : public ServiceMethods {
 public:
  struct Options {
    RequestLimits limits;
    // Null: regions are off. Outlives the service.
    RegionRegistry* regions = nullptr;
    // Outlives the service.
    UploadRegistry* uploads = nullptr;
    // Null: sessions are off. Outlives the service.
    SessionRegistry* sessions = nullptr;
    SessionDefaults session_defaults;
    Clock* clock = &Clock::Real();
    // A stream whose caller sends nothing for longer, besides the TransferTime
    // of a chunk, is ended, unless it is computed.
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
  // Of the methods that compute, since the server started.
  CallCounts call_counts() const;

  // To be called now and then.
  void EndIdleStreams();

  // Ends streams that last as long as their callers like, those to come too.
  void EndStreamsForDrain();

  // From now on calls are refused as DRAINING. Those before go on.
  void TurnCallsAway();

  // Calls that were let in, compute or stream, and whose answers are not wholly
  // sent. May miss one that comes right now.
  int64_t calls_inside() const { return environment_.gate.inside_count(); }

  // What begins with a call of each method that computes. The service outlives
  // these calls.
  MethodTable Methods();

  grpc::Status GetServerInfo(grpc::ServerContext* context,
                             const v1::GetServerInfoRequest* request,
                             v1::GetServerInfoResponse* response) override;

  grpc::Status RegisterSharedMemoryRegion(
      grpc::ServerContext* context,
      const v1::RegisterSharedMemoryRegionRequest* request,
      v1::RegisterSharedMemoryRegionResponse* response) override;

  grpc::Status RegisterCudaMemoryRegion(
      grpc::ServerContext* context,
      const v1::RegisterCudaMemoryRegionRequest* request,
      v1::RegisterCudaMemoryRegionResponse* response) override;

  grpc::Status UnregisterSharedMemoryRegion(
      grpc::ServerContext* context,
      const v1::UnregisterSharedMemoryRegionRequest* request,
      v1::UnregisterSharedMemoryRegionResponse* response) override;

  grpc::Status ListSharedMemoryRegions(
      grpc::ServerContext* context,
      const v1::ListSharedMemoryRegionsRequest* request,
      v1::ListSharedMemoryRegionsResponse* response) override;

  grpc::Status CreateSession(grpc::ServerContext* context,
                             const v1::CreateSessionRequest* request,
                             v1::CreateSessionResponse* response) override;

  grpc::Status GetSession(grpc::ServerContext* context,
                          const v1::GetSessionRequest* request,
                          v1::GetSessionResponse* response) override;

  grpc::Status ListSessions(grpc::ServerContext* context,
                            const v1::ListSessionsRequest* request,
                            v1::ListSessionsResponse* response) override;

  grpc::Status DeleteSession(grpc::ServerContext* context,
                             const v1::DeleteSessionRequest* request,
                             v1::DeleteSessionResponse* response) override;

  grpc::Status RenewSession(grpc::ServerContext* context,
                            const v1::RenewSessionRequest* request,
                            v1::RenewSessionResponse* response) override;

  grpc::Status ForkSession(grpc::ServerContext* context,
                           const v1::ForkSessionRequest* request,
                           v1::ForkSessionResponse* response) override;

  grpc::Status TruncateSession(grpc::ServerContext* context,
                               const v1::TruncateSessionRequest* request,
                               v1::TruncateSessionResponse* response) override;

 private:
  // What handle(tenant) returns, unless calls are turned away or it is unclear
  // who the tenant is.
  template <typename Handle>
  grpc::Status Answer(grpc::ServerContext& context, const Handle& handle);
  template <typename Request, typename Response>
  grpc::Status HandleSession(grpc::ServerContext& context,
                             const Request& request, Response& response);

  const v1::GetServerInfoResponse server_info_;
  const absl::Duration stream_idle_timeout_;
  absl::Notification memory_released_;
  CallEnvironment environment_;
  StreamTable streams_;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_ATTENTION_SERVICE_H_
