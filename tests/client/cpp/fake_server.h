// An in-process server whose answers a test writes, to test clients against.
#ifndef ATTENTION_TESTS_CLIENT_CPP_FAKE_SERVER_H_
#define ATTENTION_TESTS_CLIENT_CPP_FAKE_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "attention/v1/attention.grpc.pb.h"
#include "grpcpp/server.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/status.h"

namespace attention {

class FakeServer : private v1::AttentionService::Service {
 public:
  // Runs on the server's threads, several at a time; may block.
  using Handler = std::function<grpc::Status(grpc::ServerContext*,
                                             const v1::ComputeAttentionRequest&,
                                             v1::ComputeAttentionResponse*)>;

  // Listens at `address`, by default an ephemeral port of the loopback.
  explicit FakeServer(Handler handler,
                      const std::string& address = "127.0.0.1:0");
  ~FakeServer() override;

  const std::string& target() const { return target_; }
  int compute_calls() const ABSL_LOCKS_EXCLUDED(mutex_);
  void SetServing(const std::string& service, bool serving);

  // An answer whose output is the query.
  static grpc::Status Echo(grpc::ServerContext* context,
                           const v1::ComputeAttentionRequest& request,
                           v1::ComputeAttentionResponse* response);

  // A status with an ErrorInfo of this reason.
  static grpc::Status Error(grpc::StatusCode code, const std::string& message,
                            const std::string& reason);

 private:
  grpc::Status ComputeAttention(
      grpc::ServerContext* context, const v1::ComputeAttentionRequest* request,
      v1::ComputeAttentionResponse* response) override;
  grpc::Status GetServerInfo(grpc::ServerContext* context,
                             const v1::GetServerInfoRequest* request,
                             v1::GetServerInfoResponse* response) override;

  const Handler handler_;
  std::string target_;
  std::unique_ptr<grpc::Server> server_;
  mutable absl::Mutex mutex_;
  int compute_calls_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace attention

#endif  // ATTENTION_TESTS_CLIENT_CPP_FAKE_SERVER_H_
