#include "client/cpp/attention_client.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "client/cpp/call_runner.h"
#include "client/cpp/client_factory.h"
#include "client/cpp/compute_stream_impl.h"
#include "client/cpp/messages.h"
#include "client/cpp/region_table.h"
#include "client/cpp/request_memory.h"
#include "client/cpp/request_serializer.h"
#include "client/cpp/retry.h"
#include "client/cpp/sessions_impl.h"
#include "client/cpp/stream_runner.h"
#include "google/protobuf/wrappers.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"

namespace attention {
namespace {

constexpr int kMaxChannelCount = 64;
constexpr int kMaxAttempts = 100;
constexpr size_t kMaxTenantBytes = 128;
constexpr char kErrorInfoUrl[] = "type.googleapis.com/google.rpc.ErrorInfo";
constexpr char kComputeMethod[] =
    "/attention.v1.AttentionService/ComputeAttention";
constexpr char kInfoMethod[] = "/attention.v1.AttentionService/GetServerInfo";
constexpr char kHealthMethod[] = "/grpc.health.v1.Health/Check";
// grpc.health.v1.HealthCheckResponse.ServingStatus.
constexpr int kServing = 1;
constexpr int kNotServing = 2;

// Empty when the status has none.
google::rpc::ErrorInfo ErrorInfoOf(const absl::Status& status) {
  google::rpc::ErrorInfo info;
  const auto payload = status.GetPayload(kErrorInfoUrl);
  if (!payload.has_value() || !info.ParseFromString(std::string(*payload))) {
    info.Clear();
  }
  return info;
}

absl::Status CheckOptions(const Client::Options& options) {
  if (options.target.empty()) {
    return absl::InvalidArgumentError(
        "target must not be empty; for instance \"localhost:50051\"");
  }
  if (options.channel_count < 1 || options.channel_count > kMaxChannelCount) {
    return absl::InvalidArgumentError(
        absl::StrCat("channel_count must be in [1, ", kMaxChannelCount,
                     "]; got ", options.channel_count));
  }
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("timeout must be more than 0; got ",
                     absl::FormatDuration(options.timeout)));
  }
  if (options.max_attempts < 1 || options.max_attempts > kMaxAttempts) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_attempts must be in [1, ", kMaxAttempts, "]; got ",
                     options.max_attempts));
  }
  if (options.poll_time.has_value() &&
      (*options.poll_time < absl::ZeroDuration() ||
       *options.poll_time == absl::InfiniteDuration())) {
    return absl::InvalidArgumentError(
        absl::StrCat("poll_time must be finite and not negative; got ",
                     absl::FormatDuration(*options.poll_time)));
  }
  if (options.tenant.size() > kMaxTenantBytes ||
      !std::all_of(options.tenant.begin(), options.tenant.end(),
                   absl::ascii_isprint)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tenant must have at most ", kMaxTenantBytes,
                     " characters, printable ASCII; got \"",
                     absl::CHexEscape(options.tenant), "\""));
  }
  return absl::OkStatus();
}

std::vector<std::shared_ptr<grpc::Channel>> MakeChannels(
    const Client::Options& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(std::numeric_limits<int32_t>::max());
  arguments.SetMaxSendMessageSize(std::numeric_limits<int32_t>::max());
  // Otherwise equal channels share one connection.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // With gRPC's default of 1 s, early retries would not find a new connection
  // attempt but the last one's error.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // A server that falls silent during a call is found within 50 s: until then
  // gRPC may refer to the memory of a streamed request.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  arguments.SetUserAgentPrefix("attention-cpp");
  const auto credentials = options.credentials != nullptr
                               ? options.credentials
                               : grpc::InsecureChannelCredentials();
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (int i = 0; i < options.channel_count; ++i) {
    channels.push_back(
        grpc::CreateCustomChannel(options.target, credentials, arguments));
  }
  return channels;
}

absl::StatusOr<AttentionResult> ParseAnswer(
    absl::StatusOr<grpc::ByteBuffer> answer, const RegionResults& results) {
  if (!answer.ok()) return answer.status();
  v1::ComputeAttentionResponse response;
  if (absl::Status status = Parse(*std::move(answer), &response);
      !status.ok()) {
    return status;
  }
  return FromProto(std::move(response), results);
}

class ClientImpl : public Client {
 public:
  ClientImpl(const Options& options,
             const std::vector<std::shared_ptr<grpc::Channel>>& channels,
             RetryPolicy policy, CallClock* clock)
      : timeout_(options.timeout),
        memory_(RequestMemory::Create(options.max_cached_bytes)),
        max_message_bytes_(options.max_message_bytes),
        loops_(EventLoops::Shared(
            options.poll_time.value_or(EventLoop::DefaultPollTime()))),
        runner_(channels, policy, clock, *loops_, options.tenant),
        streams_(channels, policy, clock, *loops_, options.tenant),
        sessions_({&runner_, memory_.get(), timeout_}) {}

  absl::StatusOr<AttentionResult> Compute(const AttentionRequest& request,
                                          const CallOptions& call) override {
    if (IsStreamed(request, call)) {
      if (absl::Status s = CheckStreamable(request); !s.ok()) return s;
      absl::StatusOr<AttentionResult> result;
      absl::Notification finished;
      streams_.Start(request, Timeout(call),
                     [&](absl::StatusOr<AttentionResult> answer) {
                       result = std::move(answer);
                       finished.Notify();
                     });
      finished.WaitForNotification();
      return result;
    }
    absl::StatusOr<grpc::ByteBuffer> bytes =
        SerializeRequest(request, regions_, *memory_);
    if (!bytes.ok()) return bytes.status();
    return ParseAnswer(
        runner_.Run({kComputeMethod, *std::move(bytes), Timeout(call)}),
        RegionResults(request));
  }

  void ComputeAsync(const AttentionRequest& request, Done done,
                    const CallOptions& call) override {
    if (IsStreamed(request, call)) {
      absl::Status status = CheckStreamable(request);
      if (!status.ok()) return std::move(done)(std::move(status));
      return streams_.Start(request, Timeout(call), std::move(done));
    }
    absl::StatusOr<grpc::ByteBuffer> bytes =
        SerializeRequest(request, regions_, *memory_);
    if (!bytes.ok()) return std::move(done)(bytes.status());
    runner_.Start({kComputeMethod, *std::move(bytes), Timeout(call)},
                  [done = std::move(done), results = RegionResults(request)](
                      absl::StatusOr<grpc::ByteBuffer> answer) mutable {
                    std::move(done)(ParseAnswer(std::move(answer), results));
                  });
  }

  std::unique_ptr<ComputeStream> OpenComputeStream(
      const CallOptions& call) override {
    return std::make_unique<ComputeStreamImpl>(
        runner_, regions_, *memory_,
        call.timeout.value_or(absl::InfiniteDuration()));
  }

  absl::StatusOr<std::unique_ptr<SharedMemoryRegion>> CreateSharedMemoryRegion(
      const SharedMemoryRegion::Options& options) override {
    return CreateRegion(options, timeout_, &regions_, &runner_);
  }

  absl::StatusOr<std::unique_ptr<CudaMemoryRegion>> RegisterCudaMemory(
      const CudaMemoryRegion::Options& options) override {
    return RegisterCudaRegion(options, timeout_, &regions_, &runner_);
  }

  Sessions& sessions() override { return sessions_; }

  absl::StatusOr<v1::GetServerInfoResponse> GetServerInfo(
      const CallOptions& call) override {
    auto answer = runner_.Run(
        {kInfoMethod, Serialize(v1::GetServerInfoRequest()), Timeout(call)});
    if (!answer.ok()) return answer.status();
    v1::GetServerInfoResponse response;
    absl::Status status = Parse(*std::move(answer), &response);
    if (!status.ok()) return status;
    return response;
  }

  absl::Status CheckHealth(const std::string& service,
                           const CallOptions& call) override {
    // HealthCheckRequest is on the wire a string as field 1,
    // HealthCheckResponse an enum as field 1: as these two. Linking the health
    // service's own messages would collide with callers who link them too.
    google::protobuf::StringValue request;
    request.set_value(service);
    auto answer = runner_.Run({kHealthMethod, Serialize(request), Timeout(call),
                               /*retry=*/false});
    if (!answer.ok()) return answer.status();
    google::protobuf::Int32Value response;
    absl::Status status = Parse(*std::move(answer), &response);
    if (!status.ok()) return status;
    if (response.value() == kServing) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat(
        service.empty() ? "the server" : absl::StrCat("service ", service),
        response.value() == kNotServing
            ? " is not serving"
            : absl::StrCat(" has health status ", response.value())));
  }

 private:
  absl::Duration Timeout(const CallOptions& call) const {
    return call.timeout.value_or(timeout_);
  }

  absl::Status CheckStreamable(const AttentionRequest& request) const {
    for (const void* data :
         {request.query.data, request.key.data, request.value.data,
          static_cast<const void*>(request.output_buffer.data),
          static_cast<const void*>(request.log_sum_exp_buffer.data),
          static_cast<const void*>(request.weights_buffer.data)}) {
      if (regions_.IsGpuMemory(data)) {
        return absl::InvalidArgumentError(
            "tensors in a GPU's memory cannot be streamed");
      }
    }
    return absl::OkStatus();
  }

  bool IsStreamed(const AttentionRequest& request,
                  const CallOptions& call) const {
    if (call.transport.has_value()) {
      return *call.transport == Transport::kStream;
    }
    return InlineBytes(request, regions_) > max_message_bytes_ ||
           AnswerBytes(request) > max_message_bytes_;
  }

  const absl::Duration timeout_;
  RegionTable regions_;
  const std::shared_ptr<RequestMemory> memory_;
  const size_t max_message_bytes_;
  const std::shared_ptr<EventLoops> loops_;
  CallRunner runner_;
  StreamRunner streams_;
  SessionsImpl sessions_;
};

}  // namespace

TensorView TensorView::Contiguous(const void* data, std::vector<int64_t> shape,
                                  int64_t element_bytes) {
  // A shape that is negative or too large leaves no bytes; the server then says
  // what is wrong with it.
  int64_t bytes = element_bytes;
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes)) {
      bytes = 0;
      break;
    }
  }
  return {data, static_cast<size_t>(bytes), std::move(shape), {}};
}

absl::StatusOr<std::unique_ptr<Client>> Client::Create(Options options) {
  return CreateClient(std::move(options), RetryPolicy(), CallClock::Real());
}

absl::StatusOr<std::unique_ptr<Client>> CreateClient(Client::Options options,
                                                     RetryPolicy policy,
                                                     CallClock* clock) {
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  policy.max_attempts = options.max_attempts;
  return std::make_unique<ClientImpl>(options, MakeChannels(options), policy,
                                      clock);
}

std::string ErrorReason(const absl::Status& status) {
  return ErrorInfoOf(status).reason();
}

std::string ErrorFact(const absl::Status& status, const std::string& key) {
  const google::rpc::ErrorInfo info = ErrorInfoOf(status);
  const auto found = info.metadata().find(key);
  return found == info.metadata().end() ? "" : found->second;
}

}  // namespace attention
