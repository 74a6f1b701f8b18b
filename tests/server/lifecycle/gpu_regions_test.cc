// Requests whose tensors GPUs reach without a copy by the server's processors,
// on fake GPUs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>

#include "tests/server/engine/fake_cuda_runtime.h"
#include "tests/server/lifecycle/server_fixture.h"
#include "tests/server/metrics/metric_reader.h"
#include "tests/server/regions/shared_memory_object.h"

namespace attention::test {
namespace {

using ::testing::HasSubstr;
using Call = FakeCudaRuntime::Call;

class GpuRegionsTest : public ServerTest {
 protected:
  void Start(AttentionServer::Options options = {}) {
    if (!options.shared_memory.has_value()) options.shared_memory.emplace();
    options.devices.warm_up = false;
    StartServer(options, nullptr, &cuda_);
    stub_ = v1::AttentionService::NewStub(channel());
  }

  // Before the GPUs go.
  void TearDown() override { StopServer(); }

  static void Refer(const std::string& region, size_t offset, size_t size,
                    v1::RegionReference* reference) {
    reference->set_region_name(region);
    reference->set_byte_offset(static_cast<int64_t>(offset));
    reference->set_byte_size(static_cast<int64_t>(size));
  }

  // Tensors of 400 KB each, the output too, that take little to compute.
  RequestMaker LargeRequest() {
    RequestSpec spec;
    spec.batch = 20;
    spec.query_tokens = 50;
    spec.key_tokens = 50;
    spec.query_heads = 10;
    spec.kv_heads = 10;
    spec.head_dim_qk = 10;
    spec.head_dim_v = 10;
    spec.return_log_sum_exp = true;
    return RequestMaker(spec, random_);
  }

  double Metric(const std::string& name) {
    return MetricReader(server().metrics()).Sum(name);
  }

  const std::string token_ = std::string(32, 't');
  FakeCudaRuntime cuda_{2};
  std::unique_ptr<v1::AttentionService::Stub> stub_;
};

class PinnedSharedMemoryTest : public GpuRegionsTest {
 protected:
  static constexpr size_t kObjectBytes = 4 << 20;
  static constexpr size_t kOutputAt = (3 << 20) + 1;

  v1::RegisterSharedMemoryRegionResponse Register() {
    v1::RegisterSharedMemoryRegionRequest request;
    request.set_owner_token(token_);
    request.set_region_name("r");
    request.set_object_name(object_.name());
    request.set_byte_size(kObjectBytes);
    grpc::ClientContext context;
    v1::RegisterSharedMemoryRegionResponse response;
    const grpc::Status status =
        stub_->RegisterSharedMemoryRegion(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  // With all inputs in the region, at odd addresses, and the output too.
  v1::ComputeAttentionRequest Moved(v1::ComputeAttentionRequest request) {
    request.set_region_owner_token(token_);
    size_t next = 0;
    const std::pair<std::string*, v1::RegionReference*> inputs[] = {
        {request.mutable_query(), request.mutable_query_reference()},
        {request.mutable_key(), request.mutable_key_reference()},
        {request.mutable_value(), request.mutable_value_reference()}};
    for (auto [payload, reference] : inputs) {
      object_.Write(++next, *payload);
      Refer("r", next, payload->size(), reference);
      next += payload->size();
      payload->clear();
    }
    output_bytes_ = 20 * 50 * 10 * 10 * sizeof(float);
    Refer("r", kOutputAt, output_bytes_, request.mutable_output_reference());
    return request;
  }

  SharedMemoryObject object_{kObjectBytes};
  size_t output_bytes_ = 0;
};

TEST_F(PinnedSharedMemoryTest, LargeTensorsAreCopiedByTheGpuAlone) {
  Start();
  EXPECT_TRUE(Register().is_pinned());
  const RequestMaker maker = LargeRequest();
  Outcome outcome = ServerTest::Call(Moved(maker.request()));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.response.output(), "");
  outcome.response.set_output(object_.Read(kOutputAt, output_bytes_));
  EXPECT_TRUE(maker.Check(outcome.response));
  // A copy for each tensor; only the log-sum-exp comes from staging memory.
  EXPECT_EQ(cuda_.calls(Call::kCopyToDevice), 3);
  EXPECT_EQ(cuda_.calls(Call::kCopyToHost), 2);
}

TEST_F(PinnedSharedMemoryTest, WhereItCannotBePinnedItIsCopied) {
  Start();
  cuda_.FailCall(Call::kPinMemory, 1, /*sticky=*/false);
  EXPECT_FALSE(Register().is_pinned());
  const RequestMaker maker = LargeRequest();
  Outcome outcome = ServerTest::Call(Moved(maker.request()));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  outcome.response.set_output(object_.Read(kOutputAt, output_bytes_));
  EXPECT_TRUE(maker.Check(outcome.response));
}

TEST_F(PinnedSharedMemoryTest, AShrunkenObjectIsTheCallersError) {
  Start();
  Register();
  const v1::ComputeAttentionRequest request = Moved(LargeRequest().request());
  object_.Resize(kObjectBytes - 1);
  const Outcome outcome = ServerTest::Call(request);
  EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(outcome.status.error_message(), HasSubstr("smaller"));
  object_.Resize(kObjectBytes);
  EXPECT_TRUE(ServerTest::Call(request).status.ok());
}

}  // namespace
}  // namespace attention::test
