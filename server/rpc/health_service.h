// The standard gRPC health protocol.
//
// gRPC's own implementation never ends a Watch, so that a server with watching
// clients (every client with health checking) could only stop by cancelling at
// the drain timeout. This one ends them when told to stop.
#ifndef ATTENTION_SERVER_RPC_HEALTH_SERVICE_H_
#define ATTENTION_SERVER_RPC_HEALTH_SERVICE_H_

#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "server/transport/call_acceptor.h"

namespace attention {

// Thread-safe. Knows the server as a whole (the empty name) and `services`, all
// with the same status. Must outlive the grpc::Server.
class HealthService : public grpc::health::v1::Health::WithGenericMethod_Watch<
                          grpc::health::v1::Health::Service> {
 public:
  explicit HealthService(std::vector<std::string> services);
  ~HealthService() override;

  // Whether requests are taken; tells the watchers. Starts as false.
  void SetServing(bool serving) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends every Watch, and every later one at once, with UNAVAILABLE.
  void EndWatches() ABSL_LOCKS_EXCLUDED(mutex_);

  grpc::Status Check(grpc::ServerContext* context,
                     const grpc::health::v1::HealthCheckRequest* request,
                     grpc::health::v1::HealthCheckResponse* response) override
      ABSL_LOCKS_EXCLUDED(mutex_);

  // What begins with a Watch.
  MethodTable Methods();

 private:
  class Watcher;
  void AdvanceWatchersLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Knows(const std::string& service) const;

  const std::set<std::string> services_;
  absl::Mutex mutex_;
  bool serving_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<Watcher*> watchers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_HEALTH_SERVICE_H_
