#include "server/lifecycle/attention_server.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "command_line/version.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"
#include "server/engine/host_properties.h"
#include "server/lifecycle/grpc_settings.h"
#include "server/lifecycle/processor_confinement.h"
#include "server/lifecycle/server_shutdown.h"
#include "server/logging/log.h"
#include "server/rpc/server_info.h"
#include "server/scheduling/calibration.h"
#include "server/scheduling/clock.h"

namespace attention {
namespace {

absl::Status CheckOptions(const AttentionServer::Options& options) {
  constexpr int64_t kMin = 1024;
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();  // gRPC's
  if (options.max_message_bytes < kMin || options.max_message_bytes > kMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_message_bytes must be in [", kMin, ", ", kMax,
                     "]; got ", options.max_message_bytes));
  }
  if (!(options.max_request_flops >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_request_flops must be at least 0; got ",
                     options.max_request_flops));
  }
  if (options.drain_delay < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("drain_delay must be at least 0; got ",
                     absl::FormatDuration(options.drain_delay)));
  }
  if (options.max_stream_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_stream_bytes must be at least 0; got ",
                     options.max_stream_bytes));
  }
  if (options.uploads.max_upload_count < 0 ||
      options.uploads.max_lease <= absl::ZeroDuration() ||
      options.stream_idle_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_upload_count must be at least 0, the longest lease of uploads and "
        "stream_idle_timeout more than 0; got ",
        options.uploads.max_upload_count, ", ",
        absl::FormatDuration(options.uploads.max_lease), " and ",
        absl::FormatDuration(options.stream_idle_timeout)));
  }
  if (options.poll_time < absl::ZeroDuration() ||
      options.poll_time == absl::InfiniteDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("poll_time must be finite and not negative; got ",
                     absl::FormatDuration(options.poll_time)));
  }
  if (options.event_loop_count < 1 ||
      options.event_loop_count > kMaxEventLoops) {
    return absl::InvalidArgumentError(
        absl::StrCat("event_loop_count must be in [1, ", kMaxEventLoops,
                     "]; got ", options.event_loop_count));
  }
  if (options.rpc_processors < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("rpc_processors must be at least 0; got ",
                     options.rpc_processors));
  }
  if (options.session_defaults.page_tokens < 1 ||
      options.session_defaults.page_tokens > kMaxPageTokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the page size of sessions must be in [1, ", kMaxPageTokens,
        "] tokens; got ", options.session_defaults.page_tokens));
  }
  if (options.session_defaults.ttl <= absl::ZeroDuration() ||
      options.session_defaults.ttl > options.sessions.max_ttl) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the default time to live of sessions must be more than 0 and at most ",
        absl::FormatDuration(options.sessions.max_ttl), ", the longest; got ",
        absl::FormatDuration(options.session_defaults.ttl)));
  }
  if (options.listen.empty()) {
    return absl::InvalidArgumentError("listen must name an address");
  }
  return absl::OkStatus();
}

RequestLimits LimitsFor(const AttentionServer::Options& options,
                        const DeviceDescription& device) {
  // About a minute on either.
  const double by_backend =
      device.backend == "cpu" ? 3e12 * device.processor_count : 1e16;
  return {.max_message_bytes = options.max_message_bytes,
          .max_stream_bytes = options.max_stream_bytes,
          .max_request_flops = options.max_request_flops > 0
                                   ? options.max_request_flops
                                   : by_backend};
}

// What a request may need at most: no device could ever hold more. A device
// without a budget has no such bound.
size_t LargestRequestBytes(const std::vector<Device*>& devices) {
  size_t bytes = 0;
  for (const Device* device : devices) {
    const size_t budget = device->description().memory_budget_bytes;
    bytes = std::max(bytes, budget > 0 ? budget
                                       : std::numeric_limits<size_t>::max());
  }
  return bytes;
}

size_t DefaultUploadBytes(const std::vector<Device*>& devices) {
  size_t bytes = 0;
  for (const Device* device : devices) {
    const size_t budget = device->description().memory_budget_bytes;
    if (budget == 0) return std::numeric_limits<int64_t>::max();
    bytes += budget / 2;
  }
  return bytes;
}

// Memory for sessions on a device; 0: none.
size_t SessionBytes(const AttentionServer::Options& options, Device& device) {
  if (device.page_pool() == nullptr) return 0;
  return options.session_memory_bytes.value_or(
      device.description().memory_budget_bytes / 2);
}

// What the devices will be, for metrics, which devices need to be made.
std::string BackendName(Backend backend,
                        const absl::StatusOr<CudaRuntime*>& cuda) {
  if (backend == Backend::kCpu) return "cpu";
  if (backend == Backend::kCuda) return "cuda";
  return cuda.ok() && (*cuda)->DeviceCount().ok() ? "cuda" : "cpu";
}

std::unique_ptr<Metrics> MakeMetrics(const AttentionServer::Options& options,
                                     std::string backend) {
  return std::make_unique<Metrics>(
      Metrics::Options{.max_config_labels = options.max_config_labels,
                       .version = kProgramVersion,
                       .backend = std::move(backend)});
}

}  // namespace

absl::StatusOr<std::unique_ptr<AttentionServer>> AttentionServer::Create(
    Options options) {
  return Create(std::move(options), SystemCudaRuntime());
}

absl::StatusOr<std::unique_ptr<AttentionServer>> AttentionServer::Create(
    Options options, absl::StatusOr<CudaRuntime*> cuda) {
  if (auto s = CheckOptions(options); !s.ok()) return s;
  auto metrics =
      MakeMetrics(options, BackendName(options.devices.backend, cuda));
  auto devices = CreateDevices(options.devices, cuda, metrics.get());
  if (!devices.ok()) return devices.status();
  std::unique_ptr<AttentionServer> server(
      new AttentionServer(std::move(options), std::move(metrics)));
  server->device_set_ = *std::move(devices);
  if (auto s = server->SetUp(server->device_set_->devices(), &Clock::Real());
      !s.ok()) {
    return s;
  }
  if (server->options_.devices.warm_up) server->Calibrate();
  return server;
}

absl::StatusOr<std::unique_ptr<AttentionServer>> AttentionServer::Create(
    Options options, std::vector<Device*> devices, Clock* clock) {
  if (auto s = CheckOptions(options); !s.ok()) return s;
  auto metrics =
      MakeMetrics(options, devices.front()->description().backend);
  std::unique_ptr<AttentionServer> server(
      new AttentionServer(std::move(options), std::move(metrics)));
  if (auto s = server->SetUp(std::move(devices), clock); !s.ok()) return s;
  return server;
}

AttentionServer::AttentionServer(Options options,
                                 std::unique_ptr<Metrics> metrics)
    : options_(std::move(options)),
      metrics_(std::move(metrics)),
      idle_(absl::Seconds(2)) {}

AttentionServer::~AttentionServer() {
  Drain(absl::ZeroDuration());
  for (const auto& pool : spill_pools_) metrics_->RemovePool(pool.get());
}

absl::Status AttentionServer::SetUp(std::vector<Device*> devices,
                                    Clock* clock) {
  devices_ = std::move(devices);
  Scheduler::Options scheduling = options_.scheduling;
  scheduling.max_request_bytes = LargestRequestBytes(devices_);
  scheduling.may_run_inline = &EventLoop::HasFewCalls;
  if (options_.shared_memory.has_value()) {
    regions_ = std::make_unique<RegionRegistry>(
        *options_.shared_memory, &Clock::Real(), metrics_.get(),
        device_set_ != nullptr ? device_set_->cuda() : nullptr);
  }
  auto scheduler = Scheduler::Create(scheduling, devices_, metrics_.get(),
                                     &Clock::Real());
  if (!scheduler.ok()) return scheduler.status();
  scheduler_ = *std::move(scheduler);

  if (auto s = SetUpSessions(clock); !s.ok()) return s;

  UploadRegistry::Options uploads = options_.uploads;
  if (uploads.max_bytes == 0) uploads.max_bytes = DefaultUploadBytes(devices_);
  uploads_ = std::make_unique<UploadRegistry>(uploads, devices_, clock,
                                              metrics_.get());

  RequestLimits limits = LimitsFor(options_, devices_.front()->description());
  if (limits.max_stream_bytes == 0) {
    limits.max_stream_bytes = static_cast<int64_t>(
        std::min<size_t>(scheduling.max_request_bytes,
                         std::numeric_limits<int64_t>::max()));
  }
  v1::GetServerInfoResponse info =
      MakeServerInfo(kProgramVersion, devices_, limits, scheduling,
                     uploads.max_lease, regions_.get());
  info.set_replica_name(options_.sessions.replica_name);
  if (sessions_ != nullptr) {
    AddSessionInfo(options_.sessions, options_.session_defaults,
                   SessionBytes(options_, *devices_.front()), info);
  }
  service_ = std::make_unique<AttentionService>(
      AttentionService::Options{
          .limits = limits,
          .regions = regions_.get(),
          .uploads = uploads_.get(),
          .sessions = sessions_.get(),
          .session_defaults = options_.session_defaults,
          .clock = clock,
          .stream_idle_timeout = options_.stream_idle_timeout,
          .server_info = std::move(info)},
      scheduler_.get(), metrics_.get());
  health_ = std::make_unique<HealthService>(
      std::vector<std::string>{v1::AttentionService::service_full_name()});
  MethodTable methods = service_->Methods();
  methods.merge(health_->Methods());
  writes_ = std::make_unique<WriteWatch>(clock, options_.stream_idle_timeout);
  call_acceptor_ =
      std::make_unique<CallAcceptor>(std::move(methods), writes_.get());
  return absl::OkStatus();
}

absl::Status AttentionServer::SetUpSessions(Clock* clock) {
  // Devices of one backend: all have pages, or none.
  if (SessionBytes(options_, *devices_.front()) == 0) return absl::OkStatus();
  if (options_.session_spill_bytes > HostMemoryBytes() / devices_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the memory that sessions spill to is a part of the host's, which is ",
        HostMemoryBytes(), " bytes, for each of ", devices_.size(),
        " devices; got ", options_.session_spill_bytes));
  }
  std::vector<SessionRegistry::DeviceMemory> memory;
  for (Device* device : devices_) {
    const size_t budget = device->description().memory_budget_bytes;
    if (budget > 0 && SessionBytes(options_, *device) > budget) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the memory of sessions is a part of the budget of ",
          device->description().name, ", which is ", budget, " bytes; got ",
          SessionBytes(options_, *device)));
    }
    memory.push_back({.device = device,
                      .pool = device->page_pool(),
                      .budget_bytes = SessionBytes(options_, *device)});
    if (options_.session_spill_bytes == 0) continue;
    spill_pools_.push_back(std::make_unique<MemoryPool>(
        MemoryPool::Options{.name = "spill",
                            .budget_bytes = options_.session_spill_bytes},
        device->MakeSpillAllocator()));
    metrics_->AddPool(spill_pools_.back().get(), device->description().name);
    memory.back().spill_pool = spill_pools_.back().get();
    memory.back().spill_budget_bytes = options_.session_spill_bytes;
  }
  auto sessions = SessionRegistry::Create(options_.sessions, std::move(memory),
                                          clock, metrics_.get());
  if (!sessions.ok()) return sessions.status();
  sessions_ = *std::move(sessions);
  for (size_t i = 0; i < devices_.size(); ++i) {
    devices_[i]->SetKvCache(sessions_->cache(static_cast<int>(i)));
  }
  return absl::OkStatus();
}

void AttentionServer::Calibrate() {
  std::vector<HeadConfig> configs = options_.warm_up_configs;
  for (const HeadConfig& common : DefaultCalibrationConfigs()) {
    const bool is_covered = std::any_of(
        options_.warm_up_configs.begin(), options_.warm_up_configs.end(),
        [&](const HeadConfig& c) { return CostClassOf(c) == CostClassOf(common); });
    if (!is_covered) configs.push_back(common);
  }
  const absl::Time begin = absl::Now();
  const absl::Status status = scheduler_->Calibrate(configs);
  // A server that predicts badly at first is better than none.
  if (!status.ok()) {
    LogWarning("not all devices could be measured",
               {{"detail", status.ToString()}});
  }
  LogInfo("measured devices",
          {{"duration", absl::FormatDuration(absl::Now() - begin)}});
}

absl::Status AttentionServer::Start() {
  InitializeGrpc();
  if (!options_.metrics_address.empty()) {
    auto exposer = MetricsExposer::Create(options_.metrics_address, *metrics_);
    if (!exposer.ok()) return exposer.status();
    exposer_ = *std::move(exposer);
  }

  // The first that starts any of gRPC's threads; the others start more.
  const ProcessorConfinement confinement(options_.rpc_processors);
  grpc::ServerBuilder builder;
  ConfigureServer(options_.max_message_bytes,
                  options_.scheduling.max_queued_bytes, builder);
  std::vector<Listener> listeners;
  for (const std::string& text : options_.listen) {
    const auto address = ParseListenAddress(text);
    if (!address.ok()) return address.status();
    auto listener = Listener::Open(*address);
    if (!listener.ok()) return listener.status();
    bound_.push_back(listener->address());
    listeners.push_back(*std::move(listener));
  }
  auto target = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      grpc::InsecureServerCredentials());
  builder.RegisterService(service_.get());
  builder.RegisterService(health_.get());
  call_acceptor_->Register(builder);
  std::vector<std::unique_ptr<grpc::CompletionQueue>> queues;
  std::vector<grpc::ServerCompletionQueue*> calls;
  for (int i = 0; i < options_.event_loop_count; ++i) {
    std::unique_ptr<grpc::ServerCompletionQueue> queue =
        builder.AddCompletionQueue();
    calls.push_back(queue.get());
    queues.push_back(std::move(queue));
  }
  server_ = builder.BuildAndStart();
  event_loops_ =
      std::make_unique<EventLoops>(std::move(queues), options_.poll_time);
  if (server_ == nullptr) {
    event_loops_.reset();
    return absl::UnavailableError("cannot start the gRPC server");
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    call_acceptor_->Start(calls[i], &event_loops_->at(i));
  }
  auto acceptor =
      ConnectionAcceptor::Start(std::move(listeners), std::move(target));
  if (!acceptor.ok()) return acceptor.status();
  acceptor_ = *std::move(acceptor);
  health_->SetServing(true);
  for (const Device* device : devices_) {
    LogInfo("device", {{"name", device->description().name},
                       {"model", device->description().model}});
  }
  for (const std::string& address : bound_) {
    LogInfo("listening", {{"address", address}});
  }
  if (exposer_ != nullptr) {
    LogInfo("serving metrics", {{"address", exposer_->address()}});
  }
  return absl::OkStatus();
}

std::string AttentionServer::metrics_address() const {
  return exposer_ == nullptr ? "" : exposer_->address();
}

absl::Status AttentionServer::device_health() const {
  for (const Device* device : devices_) {
    if (absl::Status status = device->health(); !status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat(device->description().name, ": ",
                                       status.message()));
    }
  }
  return absl::OkStatus();
}

void AttentionServer::StopServing() { health_->SetServing(false); }

bool AttentionServer::Drain(absl::Duration timeout) {
  if (scheduler_ == nullptr) return true;
  const absl::Time deadline = absl::Now() + timeout;
  bool in_time = true;
  if (server_ != nullptr) {
    StopServing();
    absl::SleepFor(std::min(options_.drain_delay, timeout / 2));
    acceptor_.reset();
    health_->EndWatches();
    service_->EndStreamsForDrain();
    // The scheduler still takes what has already arrived.
    in_time = ShutDownServer(*server_, *service_, *writes_, deadline);
  }
  const bool drained = scheduler_->Drain(deadline);
  if (server_ != nullptr) {
    call_acceptor_->Stop();  // waits for calls that a device computes
    event_loops_.reset();
    server_.reset();
  }
  service_.reset();  // waits for memory that the transport still holds
  scheduler_.reset();
  return in_time && drained;
}

void AttentionServer::ReleaseMemoryIfIdle() {
  const auto [started, finished] = service_->call_counts();
  if (idle_.BecameIdle(absl::Now(), started, finished)) ReleaseFreeMemory();
}

void AttentionServer::ReleaseExpired() {
  if (regions_ != nullptr) regions_->ReleaseExpired();
  if (sessions_ != nullptr) sessions_->ReleaseExpired();
  service_->EndIdleStreams();
  writes_->CancelOverdue();
  uploads_->ReleaseExpired();
}

}  // namespace attention
