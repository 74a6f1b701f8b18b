// Requests whose tensors lie in shared memory that GPUs copy from and to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <utility>

#include "tests/server/lifecycle/gpu_regions_fixture.h"
#include "tests/server/regions/shared_memory_object.h"

namespace attention::test {
namespace {

using ::testing::HasSubstr;
using Call = FakeCudaRuntime::Call;

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
