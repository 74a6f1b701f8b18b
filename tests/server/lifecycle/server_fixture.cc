#include "tests/server/lifecycle/server_fixture.h"

#include <unistd.h>

#include <cstdlib>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "google/protobuf/descriptor.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/impl/client_unary_call.h"
#include "grpcpp/security/credentials.h"
#include "tests/support/kernel_backend.h"

namespace attention::test {

ServerTest::ServerTest()
    : random_(RunSeed()),
      trace_(__FILE__, __LINE__,
             absl::StrCat("repeat with --gtest_random_seed=", RunSeed())) {
  std::string pattern = testing::TempDir() + "attention-XXXXXX";
  const char* made = mkdtemp(pattern.data());
  EXPECT_NE(made, nullptr);
  folder_ = pattern;
}

ServerTest::~ServerTest() {
  channel_.reset();
  server_.reset();
  unlink(socket_path().c_str());
  rmdir(folder_.c_str());
}

AttentionServer::Options ServerTest::Complete(
    AttentionServer::Options options) const {
  options.listen = {"127.0.0.1:0", "unix:" + socket_path()};
  options.drain_delay = absl::ZeroDuration();
  // However many processors there are.
  const char* strategy = std::getenv("GRPC_POLL_STRATEGY");
  if (strategy != nullptr && std::string_view(strategy) == "poll") {
    options.event_loop_count = 3;
  }
  return options;
}

void ServerTest::StartServer(AttentionServer::Options options,
                             PuppetDevice* device, CudaRuntime* cuda,
                             Clock* clock) {
  if (device != nullptr) {
    return StartServerOn(std::move(options), {device}, clock);
  }
  options = Complete(std::move(options));
  if (options.devices.backend == Backend::kAuto) {
    options.devices.backend = cuda == nullptr ? Backend::kCpu : Backend::kCuda;
  }
  options.devices.cpu_threads = 2;
  auto server = cuda != nullptr ? AttentionServer::Create(options, cuda)
                                : AttentionServer::Create(options);
  if (options.devices.backend == Backend::kCuda &&
      absl::IsFailedPrecondition(server.status())) {
    GTEST_SKIP() << server.status().message();
  }
  Start(std::move(server));
}

void ServerTest::StartServerOn(AttentionServer::Options options,
                               std::vector<Device*> devices, Clock* clock) {
  Start(AttentionServer::Create(Complete(std::move(options)),
                                std::move(devices), clock));
}

void ServerTest::Start(
    absl::StatusOr<std::unique_ptr<AttentionServer>> server) {
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  const absl::Status started = server_->Start();
  ASSERT_TRUE(started.ok()) << started;
}

std::shared_ptr<grpc::Channel> ServerTest::Connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(),
                                   arguments);
}

std::shared_ptr<grpc::Channel> ServerTest::channel() {
  if (channel_ == nullptr) channel_ = Connect(tcp_address());
  return channel_;
}

v1::ComputeAttentionRequest ServerTest::SmallRequest() {
  return RequestMaker(RequestSpec(), random_).request();
}

Outcome ServerTest::Call(
    grpc::Channel& channel, const v1::ComputeAttentionRequest& request,
    const std::function<void(grpc::ClientContext&)>& prepare,
    const std::function<void()>& finished) {
  // The stub does not own the channel here.
  const auto stub = v1::AttentionService::NewStub(
      std::shared_ptr<grpc::Channel>(std::shared_ptr<void>(), &channel));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
  if (prepare) prepare(context);
  Outcome outcome;
  outcome.status = stub->ComputeAttention(&context, request, &outcome.response);
  if (finished) finished();
  for (const auto& [key, value] : context.GetServerTrailingMetadata()) {
    outcome.trailers.emplace(std::string(key.data(), key.size()),
                             std::string(value.data(), value.size()));
  }
  return outcome;
}

Outcome ServerTest::Call(const v1::ComputeAttentionRequest& request) {
  return Call(*channel(), request);
}

std::future<Outcome> ServerTest::CallInBackground(
    const v1::ComputeAttentionRequest& request, absl::Duration timeout) {
  return std::async(
      std::launch::async, [channel = channel(), request, timeout] {
        return Call(*channel, request, [timeout](grpc::ClientContext& context) {
          context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
        });
      });
}

std::vector<std::string> ServerTest::Methods() {
  const google::protobuf::ServiceDescriptor* const service =
      v1::ComputeAttentionRequest::descriptor()->file()->FindServiceByName(
          "AttentionService");
  std::vector<std::string> methods;
  for (int i = 0; i < service->method_count(); ++i) {
    methods.push_back(absl::StrCat("/", service->full_name(), "/",
                                   service->method(i)->name()));
  }
  return methods;
}

grpc::Status ServerTest::CallWithBytes(
    const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
    const std::string& message,
    const std::function<void(grpc::ClientContext&)>& prepare) {
  const grpc::Slice slice(message);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
  if (prepare) prepare(context);
  // A stream of one message is the same on the wire.
  return grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(
      channel.get(),
      grpc::internal::RpcMethod(method.c_str(),
                                grpc::internal::RpcMethod::NORMAL_RPC),
      &context, request, &response);
}

google::rpc::ErrorInfo ErrorInfoOf(const grpc::Status& status) {
  google::rpc::Status details;
  google::rpc::ErrorInfo info;
  if (!details.ParseFromString(status.error_details())) return info;
  for (const google::protobuf::Any& detail : details.details()) {
    if (detail.UnpackTo(&info)) break;
  }
  return info;
}

std::string ReasonOf(const grpc::Status& status) {
  return ErrorInfoOf(status).reason();
}

}  // namespace attention::test
