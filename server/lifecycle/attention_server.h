// The server put together: devices, scheduler, service, listeners, metrics.
//
//   auto server = AttentionServer::Create(options);    // devices
//   if (!server.ok()) return server.status();
//   if (auto s = (*server)->Start(); !s.ok()) return s;  // ports, SERVING
//   ...
//   bool finished = (*server)->Drain(absl::Seconds(30));
//
// Beside the attention service it offers health checking, reflection and
// channelz on every listener, and metrics on a port of their own.
#ifndef ATTENTION_SERVER_LIFECYCLE_ATTENTION_SERVER_H_
#define ATTENTION_SERVER_LIFECYCLE_ATTENTION_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "event_loop/event_loops.h"
#include "grpcpp/server.h"
#include "server/engine/device.h"
#include "server/engine/device_factory.h"
#include "server/lifecycle/connection_acceptor.h"
#include "server/lifecycle/host_memory.h"
#include "server/metrics/exposer.h"
#include "server/metrics/metrics.h"
#include "server/regions/region_registry.h"
#include "server/rpc/attention_service.h"
#include "server/rpc/health_service.h"
#include "server/scheduling/clock.h"
#include "server/scheduling/scheduler.h"
#include "server/sessions/session_registry.h"
#include "server/transport/call_acceptor.h"
#include "server/uploads/upload_registry.h"

namespace attention {

class AttentionServer {
 public:
  struct Options {
    // "host:port" or "unix:path"; port 0 takes a free port.
    std::vector<std::string> listen = {"0.0.0.0:50051"};
    // "host:port"; empty: no metrics.
    std::string metrics_address;
    DeviceOptions devices;
    // What devices are measured with before Start, unless devices.warm_up is
    // false. Types and algorithms without any are measured with a common one.
    std::vector<HeadConfig> warm_up_configs;
    // max_request_bytes is set from the devices' memory.
    Scheduler::Options scheduling;
    // Largest request and response, in [1 KiB, 2 GiB).
    int64_t max_message_bytes = int64_t{1} << 30;
    // Most floating point operations of one request; 0: what the device
    // computes in minutes, 1e14 on a CPU and 1e16 on a GPU.
    double max_request_flops = 0;
    // Most tensor bytes of a stream, in and out; 0: what a device can hold.
    int64_t max_stream_bytes = 0;
    // A max_bytes of 0: half of the devices' memory budgets.
    UploadRegistry::Options uploads;
    // Sessions: how many, whose, on which replica.
    SessionRegistry::Options sessions;
    SessionDefaults session_defaults;
    // Memory for keys and values of sessions, of each device; unset: half of
    // the device's memory budget. 0: sessions are off.
    std::optional<size_t> session_memory_bytes;
    // Memory of the host, for each device, for keys and values of idle sessions
    // when others need their place. 0: they stay, and others are refused.
    size_t session_spill_bytes = 0;
    // A stream on which nothing moves for longer is ended.
    absl::Duration stream_idle_timeout = absl::Seconds(30);
    int max_config_labels = 32;
    // Processors that gRPC's threads share; 0: they may use all of them. See
    // ProcessorConfinement.
    int rpc_processors = 0;
    // How long a thread that has handled an event of gRPC's looks for the next
    // one before it sleeps. See EventLoop.
    absl::Duration poll_time = EventLoop::DefaultPollTime();
    // Event loops, among which connections are shared out. At least 1.
    int event_loop_count = EventLoops::DefaultCount();
    // Memory that callers share. Unset: all of it is off.
    std::optional<RegionRegistry::Options> shared_memory;
    // How long a draining server still takes requests, so that those who watch
    // its health have turned away before it refuses them.
    absl::Duration drain_delay = absl::Seconds(1);
  };

  // Sets up devices and scheduler. Errors are those of CreateDevices and
  // Scheduler::Create, and INVALID_ARGUMENT naming an option out of its range.
  static absl::StatusOr<std::unique_ptr<AttentionServer>> Create(
      Options options);

  // On GPUs of a test's runtime, which must outlive the server.
  static absl::StatusOr<std::unique_ptr<AttentionServer>> Create(
      Options options, absl::StatusOr<CudaRuntime*> cuda);

  // With devices that a test made; they must outlive the server.
  // `clock` is that of leases, sessions and idle streams.
  static absl::StatusOr<std::unique_ptr<AttentionServer>> Create(
      Options options, std::vector<Device*> devices,
      Clock* clock = &Clock::Real());

  // Drains without time if Drain has not been called.
  ~AttentionServer();

  // Binds the listeners and takes requests. UNAVAILABLE naming the address when
  // one cannot be bound. Call once.
  absl::Status Start();

  // After Start: where the server listens, in the order of Options::listen.
  const std::vector<std::string>& addresses() const { return bound_; }
  // Empty without metrics.
  std::string metrics_address() const;

  const Metrics& metrics() const { return *metrics_; }

  // The first failed device's error, or OK.
  absl::Status device_health() const;

  // Tells health checks NOT_SERVING; requests are still taken.
  void StopServing();

  // StopServing; after the drain delay, refuses connections, then new requests,
  // as UNAVAILABLE, and waits for those in flight; cancels what is left after
  // `timeout`. Returns whether all were finished.
  bool Drain(absl::Duration timeout);

  // To be called now and then: gives memory back once the server is idle.
  void ReleaseMemoryIfIdle();

  // To be called now and then: forgets regions, uploads and sessions whose time
  // is over, and ends streams that do not move.
  void ReleaseExpired();

 private:
  AttentionServer(Options options, std::unique_ptr<Metrics> metrics);
  absl::Status SetUp(std::vector<Device*> devices, Clock* clock);
  absl::Status SetUpSessions(Clock* clock);
  void Calibrate();

  const Options options_;
  // In the order of dependence, so that each is destroyed before what it uses.
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<DeviceSet> device_set_;  // null with devices from a test
  std::vector<Device*> devices_;
  std::unique_ptr<RegionRegistry> regions_;  // null: regions are off
  std::vector<std::unique_ptr<MemoryPool>> spill_pools_;  // of sessions
  std::unique_ptr<SessionRegistry> sessions_;  // null: sessions are off
  std::unique_ptr<UploadRegistry> uploads_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<AttentionService> service_;
  std::unique_ptr<HealthService> health_;
  std::unique_ptr<MetricsExposer> exposer_;
  std::unique_ptr<WriteWatch> writes_;
  std::unique_ptr<CallAcceptor> call_acceptor_;
  std::unique_ptr<EventLoops> event_loops_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<ConnectionAcceptor> acceptor_;
  std::vector<std::string> bound_;
  IdleDetector idle_;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_LIFECYCLE_ATTENTION_SERVER_H_
