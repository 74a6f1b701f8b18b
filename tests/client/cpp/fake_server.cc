#include "tests/client/cpp/fake_server.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"

namespace attention {

FakeServer::FakeServer(Handler handler, const std::string& address)
    : handler_(std::move(handler)), target_(address) {
  grpc::EnableDefaultHealthCheckService(true);
  int port = 0;
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(-1);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  if (!absl::StartsWith(address, "unix:")) {
    target_ = absl::StrCat("127.0.0.1:", port);
  }
}

FakeServer::~FakeServer() { server_->Shutdown(); }

int FakeServer::compute_calls() const {
  absl::MutexLock lock(&mutex_);
  return compute_calls_;
}

void FakeServer::SetServing(const std::string& service, bool serving) {
  server_->GetHealthCheckService()->SetServingStatus(service, serving);
}

grpc::Status FakeServer::Echo(grpc::ServerContext*,
                              const v1::ComputeAttentionRequest& request,
                              v1::ComputeAttentionResponse* response) {
  response->set_data_type(request.data_type());
  *response->mutable_output_descriptor()->mutable_shape() =
      request.query_descriptor().shape();
  response->set_output(request.query());
  return grpc::Status::OK;
}

grpc::Status FakeServer::Error(grpc::StatusCode code,
                               const std::string& message,
                               const std::string& reason) {
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain("attention.v1");
  google::rpc::Status details;
  details.set_code(code);
  details.set_message(message);
  details.add_details()->PackFrom(info);
  return grpc::Status(code, message, details.SerializeAsString());
}

grpc::Status FakeServer::ComputeAttention(
    grpc::ServerContext* context, const v1::ComputeAttentionRequest* request,
    v1::ComputeAttentionResponse* response) {
  {
    absl::MutexLock lock(&mutex_);
    ++compute_calls_;
  }
  return handler_(context, *request, response);
}

grpc::Status FakeServer::GetServerInfo(grpc::ServerContext*,
                                       const v1::GetServerInfoRequest*,
                                       v1::GetServerInfoResponse* response) {
  response->set_version("1.2.3");
  response->set_backend("cpu");
  response->add_devices()->set_name("cpu:0");
  return grpc::Status::OK;
}

}  // namespace attention
