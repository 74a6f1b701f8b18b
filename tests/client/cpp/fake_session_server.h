// An in-process server with sessions of one head of one fp32 element, that does
// sums instead of attention, and fails as a test says.
#ifndef ATTENTION_TESTS_CLIENT_CPP_FAKE_SESSION_SERVER_H_
#define ATTENTION_TESTS_CLIENT_CPP_FAKE_SESSION_SERVER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "attention/v1/attention.grpc.pb.h"
#include "grpcpp/server.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/status.h"

namespace attention {

// The answer to a query is the query times the sum of the values that it sees;
// its log-sum-exp is the count of those.
class FakeSessionServer : private v1::AttentionService::Service {
 public:
  // Says what becomes of a call of `method`, before it changes anything or when
  // it has: anything but OK is its status. Runs on the server's threads.
  using Fault = std::function<grpc::Status(
      grpc::ServerContext*, const std::string& method, bool has_happened)>;

  explicit FakeSessionServer(Fault fault = nullptr);
  ~FakeSessionServer() override;

  const std::string& target() const { return target_; }
  // As a restart does.
  void ForgetSessions() ABSL_LOCKS_EXCLUDED(mutex_);
  // Of one layer; empty if there is none.
  std::vector<float> Values(const std::string& session, int32_t layer)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Names of methods, in the order in which their calls, and messages of
  // streams, came.
  std::vector<std::string> calls() ABSL_LOCKS_EXCLUDED(mutex_);
  // The tenant that the last call named.
  std::string tenant() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct FakeSession {
    v1::Session proto;  // without counts of tokens
    std::vector<std::vector<float>> layers;
  };

  // Runs `work` between the faults before and after it.
  grpc::Status Run(grpc::ServerContext* context, const std::string& method,
                   const std::function<grpc::Status()>& work)
      ABSL_LOCKS_EXCLUDED(mutex_);
  grpc::Status With(const std::string& name,
                    const std::function<grpc::Status(FakeSession&)>& work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string Add(FakeSession session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static v1::Session ToProto(const FakeSession& session);
  // OK, or the error of a step; see AppendKeysValues.
  template <typename Message>
  grpc::Status Append(const Message& step, const std::string& session,
                      const std::string& values)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string Attend(const std::string& session, int32_t layer,
                     const std::string& query, std::string* log_sum_exp)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  template <typename Request, typename Response>
  void DecodeItems(const Request& request, Response* response)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

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
  grpc::Status AppendKeysValues(
      grpc::ServerContext* context, const v1::AppendKeysValuesRequest* request,
      v1::AppendKeysValuesResponse* response) override;
  grpc::Status StreamAppendKeysValues(
      grpc::ServerContext* context,
      grpc::ServerReader<v1::StreamAppendKeysValuesRequest>* reader,
      v1::StreamAppendKeysValuesResponse* response) override;
  grpc::Status AttendSession(grpc::ServerContext* context,
                             const v1::AttendSessionRequest* request,
                             v1::AttendSessionResponse* response) override;
  grpc::Status Decode(grpc::ServerContext* context,
                      const v1::DecodeRequest* request,
                      v1::DecodeResponse* response) override;
  grpc::Status StreamDecode(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::StreamDecodeResponse,
                               v1::StreamDecodeRequest>* stream) override;

  const Fault fault_;
  std::string target_;
  std::unique_ptr<grpc::Server> server_;
  absl::Mutex mutex_;
  std::map<std::string, FakeSession> sessions_ ABSL_GUARDED_BY(mutex_);
  int next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::vector<std::string> calls_ ABSL_GUARDED_BY(mutex_);
  std::string tenant_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attention

#endif  // ATTENTION_TESTS_CLIENT_CPP_FAKE_SESSION_SERVER_H_
