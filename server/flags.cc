#include "server/flags.h"

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "command_line/program_flags.h"
#include "kernels/validation.h"
#include "server/head_config_flag.h"
#include "server/sessions/session_name.h"

ABSL_FLAG(std::vector<std::string>, listen, {"0.0.0.0:50051"},
          "Addresses to serve gRPC on, separated by commas: host:port, "
          "[ipv6]:port or unix:/path. Port 0 takes a free port; the log says "
          "which.");
ABSL_FLAG(std::string, metrics_address, "0.0.0.0:9464",
          "Address to serve Prometheus metrics on, host:port. Empty: none.");
ABSL_FLAG(std::string, backend, "auto",
          "What computes: cuda (every visible GPU), cpu, or auto (GPUs if there "
          "are any, else the CPU).");
ABSL_FLAG(int, cpu_threads, 0,
          "Threads that compute on the CPU. 0: as many as processors.");
ABSL_FLAG(int, copy_threads, attention::DeviceOptions::kAutomatic,
          "Threads that help to gather payloads for GPUs. 0: none, -1: a quarter "
          "of the processors, at most 4.");
ABSL_FLAG(int, rpc_processors,
          attention::AttentionServer::Options().rpc_processors,
          "Processors that the threads of gRPC share. On machines with many, few "
          "make the small calls of few callers faster, and those of many "
          "callers slower. 0: they may use all.");
ABSL_FLAG(int, event_loops, 0,
          "Event loops, among which connections are shared out. 0: one for each "
          "4 processors, at most 8; one where GRPC_POLL_STRATEGY, in the "
          "environment, is not \"poll\", as it is by default on 8 processors or "
          "more.");
ABSL_FLAG(absl::Duration, poll_time, attention::AttentionServer::Options().poll_time,
          "How long after a call's event a thread looks for the next one before "
          "it sleeps, which keeps a processor busy and spares callers in quick "
          "succession the time to wake it. 0: not at all, the default on 4 "
          "processors and fewer.");
ABSL_FLAG(bool, warmup, attention::DeviceOptions().warm_up,
          "Before the server takes requests: load the GPUs' kernels for fp32, "
          "fp16 and bf16 with head dimensions 64 and 128, and measure every "
          "device, so that the first predictions of time are about right.");
ABSL_FLAG(std::vector<std::string>, warmup_configs, {},
          "Head configurations to measure, and to load the kernels of, instead "
          "of a common one for each type and algorithm: type:heads:dim and "
          "perhaps a mask and three_step, e.g. "
          "bf16:16/8:128:causal,fp32:8:192/128.");
ABSL_FLAG(attention::ByteSize, host_memory_budget, {},
          "Host memory for staging and answers, e.g. 8GiB. 0: half of the "
          "machine's, or of its control group's.");
ABSL_FLAG(attention::ByteSize, device_memory_budget, {},
          "Memory of each GPU for requests. 0: 80 % of the device's.");
ABSL_FLAG(attention::ByteSize, max_message_bytes, {int64_t{1} << 30},
          "Largest request and largest response, below 2GiB.");
ABSL_FLAG(attention::ByteSize, max_stream_bytes, {},
          "Most tensor bytes of one streamed request, in and out. 0: what the "
          "largest device may hold.");
ABSL_FLAG(attention::ByteSize, max_upload_bytes, {},
          "Most bytes of the inputs of all streamed requests together, those "
          "included that wait to be resumed. 0: half of the devices' memory "
          "budgets.");
ABSL_FLAG(int, max_uploads,
          attention::UploadRegistry::Options().max_upload_count,
          "Most streamed requests at a time, those included that wait to be "
          "resumed.");
ABSL_FLAG(absl::Duration, max_upload_lease,
          attention::UploadRegistry::Options().max_lease,
          "Longest time for which a streamed request may wait to be resumed.");
ABSL_FLAG(absl::Duration, stream_idle_timeout,
          attention::AttentionServer::Options().stream_idle_timeout,
          "How long a caller may send nothing on a stream, or take nothing of "
          "the answer, before the stream is ended.");
ABSL_FLAG(std::string, replica_name,
          attention::SessionRegistry::Options().replica_name,
          "Part of the names of this server's sessions, by which clients find "
          "their way back to it: 1 to 63 letters, digits, '-' and '_'. Different "
          "for each of several servers, e.g. the pod's name.");
ABSL_FLAG(std::optional<attention::ByteSize>, session_memory, std::nullopt,
          "Memory of each device for the keys and values of sessions, part of "
          "its budget. Empty: half of that. 0: no sessions.");
ABSL_FLAG(attention::ByteSize, session_spill_memory, {0},
          "Memory of the host, for each device, to which keys and values of idle "
          "sessions go when others need their place (pinned with GPUs). 0: they "
          "stay, and others are refused.");
ABSL_FLAG(int, session_page_tokens,
          attention::SessionDefaults().page_tokens,
          "Tokens of one page: sessions get memory in pages, each for so many "
          "tokens of one layer.");
ABSL_FLAG(std::string, session_split_policy, "fixed",
          "How GPUs cut the keys of sessions that do not say: \"fixed\", by each "
          "session's own shape, so that answers are bitwise the same whatever "
          "they are batched with, or \"balanced\", for the launch as a whole, "
          "which is a few percent faster with many sessions.");
ABSL_FLAG(int64_t, max_sessions,
          attention::SessionRegistry::Options().max_session_count,
          "Most sessions at a time.");
ABSL_FLAG(int64_t, max_sessions_per_owner,
          attention::SessionRegistry::Options().max_owner_session_count,
          "Most sessions of one owner (metadata key attention-tenant).");
ABSL_FLAG(int64_t, max_session_tokens_per_owner,
          attention::SessionRegistry::Options().max_owner_tokens,
          "Most tokens of one owner's sessions: those of each layer count, "
          "reserved or there, whichever are more.");
ABSL_FLAG(absl::Duration, default_session_ttl,
          attention::SessionDefaults().ttl,
          "How long a session lives without use if its caller does not say.");
ABSL_FLAG(absl::Duration, max_session_ttl,
          attention::SessionRegistry::Options().max_ttl,
          "How long a session may live without use at most.");
ABSL_FLAG(double, max_request_flops, 0,
          "Most floating point operations of one request, which bounds how long "
          "it can occupy a device (see ServerLimits in the API). 0: 3e12 per "
          "thread on a CPU, 1e16 on a GPU.");
ABSL_FLAG(int, max_batch_requests,
          attention::Scheduler::Options().max_batch_requests,
          "Most requests in one batch.");
ABSL_FLAG(attention::ByteSize, max_batch_bytes,
          {static_cast<int64_t>(
              attention::Scheduler::Options().max_batch_bytes)},
          "Most tensor bytes, in and out, in one batch. A larger request runs "
          "alone.");
ABSL_FLAG(int64_t, max_batch_tokens,
          attention::Scheduler::Options().max_batch_tokens,
          "Most query tokens in one batch. A larger request runs alone.");
ABSL_FLAG(absl::Duration, max_batch_time,
          attention::Scheduler::Options().max_batch_time,
          "Most predicted device time of one batch, e.g. 50ms. A longer request "
          "runs alone. 0: unlimited.");
ABSL_FLAG(absl::Duration, max_queue_delay,
          attention::Scheduler::Options().max_queue_delay,
          "How long an idle device waits for a batch to fill, e.g. 500us. 0: it "
          "takes what there is at once.");
ABSL_FLAG(int, max_queued_requests,
          attention::Scheduler::Options().max_queued_requests,
          "Most requests waiting, in all queues together. More are refused with "
          "RESOURCE_EXHAUSTED and a delay to retry after.");
ABSL_FLAG(attention::ByteSize, max_queued_bytes,
          {static_cast<int64_t>(
              attention::Scheduler::Options().max_queued_bytes)},
          "Most tensor bytes, in and out, waiting in all queues together.");
ABSL_FLAG(absl::Duration, max_queued_time,
          attention::Scheduler::Options().max_queued_time,
          "Most predicted time that the devices may need for what waits, e.g. "
          "500ms. 0: unlimited.");
ABSL_FLAG(absl::Duration, max_inline_time,
          attention::Scheduler::Options().max_inline_time,
          "Requests that find an idle device and are predicted to take it no "
          "longer than this are computed by the thread that received them, "
          "instead of waking another one, while few calls are under way. 0: "
          "none.");
ABSL_FLAG(int, max_tenants, attention::Scheduler::Options().max_tenants,
          "Tenants (metadata key attention-tenant) with work waiting that are "
          "told apart; any further ones share a turn.");
ABSL_FLAG(absl::Duration, drain_timeout, absl::Seconds(30),
          "After SIGTERM, SIGINT or a device's failure: how long requests in "
          "flight may take before they are cancelled.");
ABSL_FLAG(absl::Duration, drain_delay,
          attention::AttentionServer::Options().drain_delay,
          "Part of drain_timeout, at most half: how long requests are still "
          "taken after health checks have turned to NOT_SERVING.");
ABSL_FLAG(bool, allow_shared_memory, false,
          "Let callers on this machine place tensors in POSIX shared memory "
          "instead of messages. Whoever can call the server can then have it "
          "read and write every object /dev/shm/attention-* that its user may "
          "open.");
ABSL_FLAG(
    bool, allow_cuda_ipc, false,
    "Let callers on this machine place tensors in memory of the GPUs that "
    "they share through CUDA IPC. CUDA's driver then opens handles in this "
    "process that callers made up, and kernels read and write the memory "
    "that they stand for.");
ABSL_FLAG(int, max_shared_memory_regions,
          attention::RegionRegistry::Options().max_region_count,
          "Most regions of shared memory (each takes a file descriptor) and of "
          "memory of GPUs.");
ABSL_FLAG(
    attention::ByteSize, max_shared_memory_bytes,
    {attention::RegionRegistry::Options().max_bytes},
    "Most bytes of all these regions together. With GPUs, those of shared "
    "memory are pinned.");
ABSL_FLAG(std::string, log_format, "text",
          "Log lines on stderr: text, or json (one object per line).");
ABSL_FLAG(std::string, log_level, "info",
          "Least severe lines to log: debug, info, warning or error.");
ABSL_FLAG(int, max_config_labels,
          attention::AttentionServer::Options().max_config_labels,
          "Head configurations told apart in metrics; callers choose them. "
          "Further ones are counted as \"other\".");

namespace attention {
namespace {

struct Unit {
  absl::string_view suffix;
  int64_t bytes;
};

// Longer suffixes first, plain bytes last.
constexpr Unit kUnits[] = {
    {"KiB", int64_t{1} << 10}, {"MiB", int64_t{1} << 20},
    {"GiB", int64_t{1} << 30}, {"TiB", int64_t{1} << 40},
    {"KB", 1'000},             {"MB", 1'000'000},
    {"GB", 1'000'000'000},     {"TB", 1'000'000'000'000},
    {"B", 1},                  {"", 1},
};

template <typename T>
absl::Status CheckAtLeast(absl::string_view flag, T value, T bound) {
  if (value >= bound) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, " must be at least ", bound, "; got ", value));
}

absl::Status CheckPositive(absl::string_view flag, absl::Duration value) {
  if (value > absl::ZeroDuration()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--", flag, " must be more than 0; got ", absl::FormatDuration(value)));
}

absl::Status CheckDuration(absl::string_view flag, absl::Duration value) {
  if (value >= absl::ZeroDuration() && value != absl::InfiniteDuration()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, " must be at least 0 and finite; got ",
                   absl::FormatDuration(value)));
}

absl::Status CheckRanges(const ServerFlags& flags) {
  constexpr int64_t kMaxMessage = std::numeric_limits<int32_t>::max();
  const AttentionServer::Options& server = flags.server;
  if (server.max_message_bytes < 1024 ||
      server.max_message_bytes > kMaxMessage) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--max_message_bytes must be in [1024, ", kMaxMessage, "]; got ",
        server.max_message_bytes));
  }
  if (!std::isfinite(server.max_request_flops)) {
    return absl::InvalidArgumentError("--max_request_flops must be finite");
  }
  const Scheduler::Options& scheduling = server.scheduling;
  for (const absl::Status& status :
       {CheckAtLeast("cpu_threads", server.devices.cpu_threads, 0),
        CheckAtLeast("copy_threads", server.devices.copy_threads,
                     DeviceOptions::kAutomatic),
        CheckAtLeast("rpc_processors", server.rpc_processors, 0),
        CheckAtLeast("max_shared_memory_regions",
                     absl::GetFlag(FLAGS_max_shared_memory_regions), 0),
        CheckAtLeast("max_request_flops", server.max_request_flops, 0.0),
        CheckAtLeast("max_batch_requests", scheduling.max_batch_requests, 1),
        CheckAtLeast("max_batch_bytes", scheduling.max_batch_bytes, size_t{1}),
        CheckAtLeast("max_batch_tokens", scheduling.max_batch_tokens, int64_t{1}),
        CheckAtLeast("max_queued_requests", scheduling.max_queued_requests, 1),
        CheckAtLeast("max_queued_bytes", scheduling.max_queued_bytes, size_t{1}),
        CheckAtLeast("max_config_labels", server.max_config_labels, 1),
        CheckAtLeast("max_tenants", scheduling.max_tenants, 1),
        CheckDuration("max_batch_time", scheduling.max_batch_time),
        CheckDuration("max_inline_time", scheduling.max_inline_time),
        CheckDuration("max_queue_delay", scheduling.max_queue_delay),
        CheckDuration("max_queued_time", scheduling.max_queued_time),
        CheckDuration("poll_time", server.poll_time),
        CheckAtLeast("event_loops", absl::GetFlag(FLAGS_event_loops), 0),
        CheckAtLeast("max_uploads", server.uploads.max_upload_count, 1),
        CheckPositive("max_upload_lease", server.uploads.max_lease),
        CheckPositive("stream_idle_timeout", server.stream_idle_timeout),
        CheckReplicaName(server.sessions.replica_name),
        CheckAtLeast("session_page_tokens", server.session_defaults.page_tokens,
                     1),
        CheckAtLeast("max_sessions", server.sessions.max_session_count,
                     int64_t{1}),
        CheckAtLeast("max_sessions_per_owner",
                     server.sessions.max_owner_session_count, int64_t{1}),
        CheckAtLeast("max_session_tokens_per_owner",
                     server.sessions.max_owner_tokens, int64_t{1}),
        CheckPositive("default_session_ttl", server.session_defaults.ttl),
        CheckPositive("max_session_ttl", server.sessions.max_ttl),
        CheckDuration("drain_timeout", flags.drain_timeout),
        CheckDuration("drain_delay", server.drain_delay)}) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ReadLogFlags(ServerFlags& flags) {
  const std::string format = absl::GetFlag(FLAGS_log_format);
  if (format == "json") {
    flags.log_format = LogFormat::kJson;
  } else if (format != "text") {
    return absl::InvalidArgumentError(
        absl::StrCat("--log_format must be text or json; got ", format));
  }
  const std::string level = absl::GetFlag(FLAGS_log_level);
  if (level == "debug") {
    flags.log_level = LogLevel::kDebug;
  } else if (level == "warning") {
    flags.log_level = LogLevel::kWarning;
  } else if (level == "error") {
    flags.log_level = LogLevel::kError;
  } else if (level != "info") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--log_level must be debug, info, warning or error; got ", level));
  }
  return absl::OkStatus();
}

size_t Bytes(const absl::Flag<ByteSize>& flag) {
  return static_cast<size_t>(absl::GetFlag(flag).bytes);
}

absl::StatusOr<SplitPolicy> ParseSplitPolicy(absl::string_view name) {
  if (name == ToString(SplitPolicy::kFixed)) return SplitPolicy::kFixed;
  if (name == ToString(SplitPolicy::kBalanced)) return SplitPolicy::kBalanced;
  return absl::InvalidArgumentError(absl::StrCat(
      "--session_split_policy must be fixed or balanced; got ", name));
}

absl::Status ReadServerFlags(AttentionServer::Options& options) {
  options.listen = absl::GetFlag(FLAGS_listen);
  for (const std::string& text : options.listen) {
    if (auto address = ParseListenAddress(text); !address.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--listen: ", address.status().message()));
    }
  }
  if (options.listen.empty()) {
    return absl::InvalidArgumentError("--listen must name an address");
  }
  options.metrics_address = absl::GetFlag(FLAGS_metrics_address);
  auto backend = ParseBackend(absl::GetFlag(FLAGS_backend));
  if (!backend.ok()) return backend.status();
  options.devices.backend = *backend;
  options.devices.cpu_threads = absl::GetFlag(FLAGS_cpu_threads);
  options.devices.copy_threads = absl::GetFlag(FLAGS_copy_threads);
  options.devices.warm_up = absl::GetFlag(FLAGS_warmup);
  for (const std::string& text : absl::GetFlag(FLAGS_warmup_configs)) {
    auto config = ParseHeadConfig(text);
    if (!config.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--warmup_configs: ", config.status().message()));
    }
    options.warm_up_configs.push_back(*config);
  }
  options.devices.host_memory_budget_bytes = Bytes(FLAGS_host_memory_budget);
  options.devices.device_memory_budget_bytes = Bytes(FLAGS_device_memory_budget);
  options.max_message_bytes = absl::GetFlag(FLAGS_max_message_bytes).bytes;
  options.max_request_flops = absl::GetFlag(FLAGS_max_request_flops);
  options.max_stream_bytes = absl::GetFlag(FLAGS_max_stream_bytes).bytes;
  options.uploads = {.max_upload_count = absl::GetFlag(FLAGS_max_uploads),
                     .max_bytes = Bytes(FLAGS_max_upload_bytes),
                     .max_lease = absl::GetFlag(FLAGS_max_upload_lease)};
  options.sessions.replica_name = absl::GetFlag(FLAGS_replica_name);
  options.sessions.max_session_count = absl::GetFlag(FLAGS_max_sessions);
  options.sessions.max_owner_session_count =
      absl::GetFlag(FLAGS_max_sessions_per_owner);
  options.sessions.max_owner_tokens =
      absl::GetFlag(FLAGS_max_session_tokens_per_owner);
  options.sessions.max_ttl = absl::GetFlag(FLAGS_max_session_ttl);
  const auto split_policy =
      ParseSplitPolicy(absl::GetFlag(FLAGS_session_split_policy));
  if (!split_policy.ok()) return split_policy.status();
  options.session_defaults = {
      .page_tokens = absl::GetFlag(FLAGS_session_page_tokens),
      .split_policy = *split_policy,
      .ttl = absl::GetFlag(FLAGS_default_session_ttl)};
  if (const auto memory = absl::GetFlag(FLAGS_session_memory);
      memory.has_value()) {
    options.session_memory_bytes = static_cast<size_t>(memory->bytes);
  }
  options.session_spill_bytes = Bytes(FLAGS_session_spill_memory);
  options.stream_idle_timeout = absl::GetFlag(FLAGS_stream_idle_timeout);
  options.scheduling.max_batch_requests = absl::GetFlag(FLAGS_max_batch_requests);
  options.scheduling.max_batch_bytes = Bytes(FLAGS_max_batch_bytes);
  options.scheduling.max_batch_tokens = absl::GetFlag(FLAGS_max_batch_tokens);
  options.scheduling.max_queue_delay = absl::GetFlag(FLAGS_max_queue_delay);
  options.scheduling.max_queued_requests =
      absl::GetFlag(FLAGS_max_queued_requests);
  options.scheduling.max_queued_bytes = Bytes(FLAGS_max_queued_bytes);
  options.scheduling.max_batch_time = absl::GetFlag(FLAGS_max_batch_time);
  options.scheduling.max_inline_time = absl::GetFlag(FLAGS_max_inline_time);
  options.scheduling.max_queued_time = absl::GetFlag(FLAGS_max_queued_time);
  options.scheduling.max_tenants = absl::GetFlag(FLAGS_max_tenants);
  options.max_config_labels = absl::GetFlag(FLAGS_max_config_labels);
  options.rpc_processors = absl::GetFlag(FLAGS_rpc_processors);
  options.poll_time = absl::GetFlag(FLAGS_poll_time);
  if (const int count = absl::GetFlag(FLAGS_event_loops); count > 0) {
    options.event_loop_count = count;
  }
  options.drain_delay = absl::GetFlag(FLAGS_drain_delay);
  const bool system = absl::GetFlag(FLAGS_allow_shared_memory);
  const bool cuda = absl::GetFlag(FLAGS_allow_cuda_ipc);
  if (system || cuda) {
    options.shared_memory = {
        .allow_system = system,
        .allow_cuda = cuda,
        .max_region_count = absl::GetFlag(FLAGS_max_shared_memory_regions),
        .max_bytes = absl::GetFlag(FLAGS_max_shared_memory_bytes).bytes};
  }
  return absl::OkStatus();
}

}  // namespace

bool AbslParseFlag(absl::string_view text, ByteSize* size, std::string* error) {
  for (const Unit& unit : kUnits) {
    if (!absl::EndsWith(text, unit.suffix)) continue;
    double number;
    const double limit =
        static_cast<double>(std::numeric_limits<int64_t>::max());
    if (!absl::SimpleAtod(text.substr(0, text.size() - unit.suffix.size()),
                          &number) ||
        !(number >= 0) || !(number * static_cast<double>(unit.bytes) < limit)) {
      break;
    }
    size->bytes = static_cast<int64_t>(number * static_cast<double>(unit.bytes));
    return true;
  }
  *error = "expected a size such as 1048576, 512MiB or 8GiB";
  return false;
}

std::string AbslUnparseFlag(ByteSize size) {
  for (int i = 3; i >= 0; --i) {
    const Unit& unit = kUnits[i];
    if (size.bytes > 0 && size.bytes % unit.bytes == 0) {
      return absl::StrCat(size.bytes / unit.bytes, unit.suffix);
    }
  }
  return absl::StrCat(size.bytes);
}

absl::StatusOr<ServerFlags> ParseServerFlags(int argc, char** argv) {
  const Program program = {
      .name = "attention-server",
      .usage =
          "Serves batched softmax attention over gRPC.\n\n"
          "  attention-server [--listen=host:port,unix:/path] [--backend=cpu] "
          "...\n\n"
          "Flags may also come from a file (--flagfile) or from variables\n"
          "FLAGS_<name> of the environment (--fromenv).",
      .flags_file = "server/flags.cc"};
  const std::vector<char*> rest = ParseProgramFlags(program, argc, argv);
  if (rest.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "unexpected argument \"", rest[1], "\"; see --help"));
  }
  ServerFlags flags;
  flags.drain_timeout = absl::GetFlag(FLAGS_drain_timeout);
  if (auto s = ReadLogFlags(flags); !s.ok()) return s;
  if (auto s = ReadServerFlags(flags.server); !s.ok()) return s;
  if (auto s = CheckRanges(flags); !s.ok()) return s;
  return flags;
}

}  // namespace attention
