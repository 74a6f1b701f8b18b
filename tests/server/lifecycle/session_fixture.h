// A server with sessions, calls to it, and what the sessions should
// hold, to compare answers with the reference.
#ifndef ATTENTION_TESTS_SERVER_LIFECYCLE_SESSION_FIXTURE_H_
#define ATTENTION_TESTS_SERVER_LIFECYCLE_SESSION_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attention/v1/attention.grpc.pb.h"
#include "kernels/mask.h"
#include "server/engine/device_factory.h"
#include "server/metrics/metrics.h"
#include "tests/server/lifecycle/server_fixture.h"
#include "tests/support/fake_clock.h"

namespace attention::test {

using Floats = std::vector<float>;

// What a session should hold: the same as what was appended.
struct ModelSession {
  struct Layer {
    Floats key;    // [tokens, kv heads, head dimension]
    Floats value;  // as key
    int64_t tokens = 0;
  };

  std::string name;
  std::optional<int64_t> window_left;
  int64_t sink_tokens = 0;
  std::vector<Layer> layers;
};

class SessionTest : public ServerTest {
 protected:
  static constexpr int kQueryHeads = 4;
  static constexpr int kKvHeads = 2;
  static constexpr int kHeadDim = 8;
  static constexpr int kQueryRow = kQueryHeads * kHeadDim;
  static constexpr int kKeyRow = kKvHeads * kHeadDim;
  static constexpr int kLayers = 2;

  void TearDown() override;

  // On the CPU unless device_options_ say otherwise; skips the test when there is
  // no such device. Sessions see the time of clock().
  void StartSessions(AttentionServer::Options options = {});
  FakeClock& clock() { return clock_; }
  v1::AttentionService::Stub& stub();

  // A context that gives up in a minute, of this owner.
  static std::unique_ptr<grpc::ClientContext> Context(
      const std::string& owner = "");

  // fp32, with the sizes above.
  static v1::SessionConfiguration Configuration();

  // Calls that must succeed.
  ModelSession Create(const v1::CreateSessionRequest& request,
                      const std::string& owner = "");
  ModelSession Create();
  v1::Session Get(const std::string& name, const std::string& owner = "");

  // Random tokens, which the model session takes.
  v1::AppendKeysValuesRequest MakeAppend(ModelSession& session, int layer,
                                         int tokens);
  grpc::Status Append(const v1::AppendKeysValuesRequest& request,
                      v1::AppendKeysValuesResponse* response = nullptr);
  // Appends as above; must succeed.
  void Append(ModelSession& session, int layer, int tokens);

  // A step with tokens of its own, which the model session takes, and the query.
  struct Step {
    ModelSession* session;
    int layer;
    int tokens;
  };
  v1::DecodeRequest MakeDecode(const std::vector<Step>& steps);
  // Of a request whose steps have been taken, that all have succeeded: compares
  // the answer with the reference.
  template <typename Request, typename Response>
  static testing::AssertionResult CheckDecoded(const Request& request,
                                               const Response& response,
                                               const std::vector<Step>& steps);

  v1::AttendSessionRequest MakeAttend(const ModelSession& session, int layer,
                                      int tokens);
  grpc::Status Attend(const v1::AttendSessionRequest& request,
                      v1::AttendSessionResponse* response);

  // The last `tokens` queries of the layer, in `query`, over `range`.
  static testing::AssertionResult Check(
      const ModelSession& session, int layer, absl::string_view query,
      absl::string_view output, absl::string_view log_sum_exp,
      std::optional<KeyRange> range = std::nullopt);

  std::string RandomBytes(int64_t count, Floats* floats = nullptr);
  int Draw(int low, int high);

  // On a CPU: all that it has for requests and sessions.
  static constexpr size_t kMemoryBytes = size_t{64} << 20;
  DeviceOptions device_options_ = {.backend = Backend::kCpu,
                                   .cpu_threads = 2,
                                   .warm_up = false,
                                   .host_memory_budget_bytes = kMemoryBytes};
  CudaRuntime* cuda_runtime_ = nullptr;  // null: the system's

 private:
  Metrics device_metrics_{{}};
  std::unique_ptr<DeviceSet> devices_;
  FakeClock clock_;
  std::unique_ptr<v1::AttentionService::Stub> stub_;
};

template <typename Request, typename Response>
testing::AssertionResult SessionTest::CheckDecoded(
    const Request& request, const Response& response,
    const std::vector<Step>& steps) {
  if (response.item_errors_size() > 0) {
    return testing::AssertionFailure() << response.item_errors(0).DebugString();
  }
  int64_t token = 0;
  for (const Step& step : steps) {
    const auto part = [&](const std::string& bytes, int row) {
      return absl::string_view(bytes).substr(token * row * sizeof(float),
                                             step.tokens * row * sizeof(float));
    };
    auto result = Check(*step.session, step.layer,
                        part(request.query(), kQueryRow),
                        part(response.output(), kQueryRow),
                        part(response.log_sum_exp(), kQueryHeads));
    if (!result) return result;
    token += step.tokens;
  }
  return testing::AssertionSuccess();
}

}  // namespace attention::test

#endif  // ATTENTION_TESTS_SERVER_LIFECYCLE_SESSION_FIXTURE_H_
