// A real server in this process, on free ports, and calls to it.
#ifndef ATTENTION_TESTS_SERVER_LIFECYCLE_SERVER_FIXTURE_H_
#define ATTENTION_TESTS_SERVER_LIFECYCLE_SERVER_FIXTURE_H_

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "attention/v1/attention.grpc.pb.h"
#include "google/rpc/status.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "server/lifecycle/attention_server.h"
#include "tests/server/rpc/request_maker.h"
#include "tests/support/puppet_device.h"

namespace attention::test {

// How a call ended.
struct Outcome {
  grpc::Status status;
  v1::ComputeAttentionResponse response;
  std::multimap<std::string, std::string> trailers;
};

class ServerTest : public ::testing::Test {
 protected:
  ServerTest();
  ~ServerTest() override;

  // Listens on a free TCP port and on a unix socket. Without `device` and with
  // Backend::kAuto, on the CPU backend; skips the test when there is no GPU for
  // Backend::kCuda. With `cuda`, on the GPUs of that runtime. `clock` is for
  // servers with a `device`.
  void StartServer(AttentionServer::Options options = {},
                   PuppetDevice* device = nullptr, CudaRuntime* cuda = nullptr,
                   Clock* clock = &Clock::Real());
  // On any devices, which must outlive the server.
  void StartServerOn(AttentionServer::Options options,
                     std::vector<Device*> devices, Clock* clock);
  AttentionServer& server() { return *server_; }
  void StopServer() { server_.reset(); }

  const std::string& tcp_address() const { return server_->addresses()[0]; }
  const std::string& unix_address() const { return server_->addresses()[1]; }
  std::string socket_path() const { return folder_ + "/server.sock"; }

  // A connection of its own, for messages of any size.
  static std::shared_ptr<grpc::Channel> Connect(const std::string& address);
  std::shared_ptr<grpc::Channel> channel();

  // A small valid request.
  v1::ComputeAttentionRequest SmallRequest();

  // Calls ComputeAttention. `prepare` may set deadlines and cancel; the context
  // lives until `finished` has returned.
  static Outcome Call(
      grpc::Channel& channel, const v1::ComputeAttentionRequest& request,
      const std::function<void(grpc::ClientContext&)>& prepare = {},
      const std::function<void()>& finished = {});
  Outcome Call(const v1::ComputeAttentionRequest& request);
  std::future<Outcome> CallInBackground(
      const v1::ComputeAttentionRequest& request,
      absl::Duration timeout = absl::Seconds(60));

  // "/attention.v1.AttentionService/ComputeAttention" and so on, all of them.
  static std::vector<std::string> Methods();
  // Sends one message and returns how the call ended. Works for methods of
  // every kind that answer with an error.
  static grpc::Status CallWithBytes(
      const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
      const std::string& message,
      const std::function<void(grpc::ClientContext&)>& prepare = {});

  std::mt19937_64 random_;

 private:
  void Start(absl::StatusOr<std::unique_ptr<AttentionServer>> server);
  AttentionServer::Options Complete(AttentionServer::Options options) const;

  testing::ScopedTrace trace_;
  std::string folder_;  // for the socket; short, as a socket's path must be
  std::unique_ptr<AttentionServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

// On the backend that the parameter names.
class BackendServerTest : public ServerTest,
                          public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    AttentionServer::Options options;
    options.devices.backend = *ParseBackend(GetParam());
    StartServer(options);
  }
};

// Empty when there is none.
google::rpc::ErrorInfo ErrorInfoOf(const grpc::Status& status);

// ErrorInfo.reason; empty when there is none.
std::string ReasonOf(const grpc::Status& status);

}  // namespace attention::test

#endif  // ATTENTION_TESTS_SERVER_LIFECYCLE_SERVER_FIXTURE_H_
