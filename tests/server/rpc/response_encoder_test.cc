#include "server/rpc/response_encoder.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "server/memory/memory_pool.h"
#include "server/rpc/response_parts.h"

namespace attention {
namespace {

class ResponseEncoderTest : public ::testing::Test {
 protected:
  Block MakeBlock(const std::string& bytes) {
    absl::StatusOr<Block> block = pool_.Allocate(bytes.size());
    EXPECT_TRUE(block.ok()) << block.status();
    std::memcpy(block->data(), bytes.data(), bytes.size());
    return *std::move(block);
  }

  Block MakeFloats(const std::vector<float>& values) {
    return MakeBlock(std::string(reinterpret_cast<const char*>(values.data()),
                                 values.size() * sizeof(float)));
  }

  template <typename Response = v1::ComputeAttentionResponse>
  static Response Parse(const grpc::ByteBuffer& buffer) {
    std::vector<grpc::Slice> slices;
    EXPECT_TRUE(buffer.Dump(&slices).ok());
    std::string message;
    for (const grpc::Slice& slice : slices) {
      message.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
    Response response;
    EXPECT_TRUE(response.ParseFromString(message));
    // Written as protobuf would have written it.
    EXPECT_EQ(response.SerializeAsString(), message);
    return response;
  }

  static std::vector<float> Floats(const std::string& bytes) {
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  MemoryPool pool_{{.name = "host", .budget_bytes = 1 << 20}, MakeHostAllocator()};
};

TEST_F(ResponseEncoderTest, WritesEverything) {
  ResponsePlan plan;
  plan.data_type = v1::DATA_TYPE_BFLOAT16;
  plan.output_shape = {1, 2, 3, 4};
  plan.has_log_sum_exp = true;
  plan.log_sum_exp_shape = {1, 2, 3};
  plan.has_weights = true;
  plan.weights_shape = {1, 3, 2, 5};
  WorkResult result;
  result.output = MakeBlock(std::string(48, 'o'));
  result.log_sum_exp = MakeBlock(std::string(24, 'l'));
  result.weights = MakeBlock(std::string(60, 'w'));
  result.queue_duration = absl::Seconds(2) + absl::Nanoseconds(7);
  result.copy_in_duration = absl::Microseconds(3);
  result.compute_duration = absl::Milliseconds(4);
  result.copy_out_duration = absl::Nanoseconds(5);
  result.batch_request_count = 6;
  result.batch_sequence_count = 8;
  result.device_name = "cuda:1";

  const auto response = Parse(EncodeResponse(plan, std::move(result), nullptr));
  EXPECT_EQ(response.data_type(), v1::DATA_TYPE_BFLOAT16);
  EXPECT_EQ(response.output(), std::string(48, 'o'));
  EXPECT_EQ(response.log_sum_exp(), std::string(24, 'l'));
  EXPECT_EQ(response.weights(), std::string(60, 'w'));
  EXPECT_EQ(response.output_descriptor().ShortDebugString(),
            "shape: 1 shape: 2 shape: 3 shape: 4");
  EXPECT_EQ(response.log_sum_exp_descriptor().ShortDebugString(),
            "shape: 1 shape: 2 shape: 3");
  EXPECT_EQ(response.weights_descriptor().ShortDebugString(),
            "shape: 1 shape: 3 shape: 2 shape: 5");
  const v1::ComputeAttentionTimings& timings = response.timings();
  EXPECT_EQ(timings.queue_duration().seconds(), 2);
  EXPECT_EQ(timings.queue_duration().nanos(), 7);
  EXPECT_EQ(timings.copy_in_duration().nanos(), 3'000);
  EXPECT_EQ(timings.compute_duration().nanos(), 4'000'000);
  EXPECT_EQ(timings.copy_out_duration().nanos(), 5);
  EXPECT_EQ(timings.batch_request_count(), 6);
  EXPECT_EQ(timings.batch_sequence_count(), 8);
  EXPECT_EQ(timings.device_name(), "cuda:1");
}

TEST_F(ResponseEncoderTest, LeavesOutWhatWasNotAskedFor) {
  ResponsePlan plan;
  plan.output_shape = {0, 3, 4};
  const auto response = Parse(EncodeResponse(plan, WorkResult(), nullptr));
  EXPECT_FALSE(response.has_log_sum_exp_descriptor());
  EXPECT_FALSE(response.has_weights_descriptor());
  EXPECT_TRUE(response.output().empty());
  EXPECT_EQ(response.output_descriptor().shape_size(), 3);
}

TEST_F(ResponseEncoderTest, WritesTheMessageOfAStream) {
  using StreamResponse = v1::StreamComputeAttentionResponse;
  for (const int64_t tag : {int64_t{0}, int64_t{-1}, int64_t{1} << 60}) {
    for (const size_t size :
         {size_t{0}, size_t{1}, size_t{127}, size_t{70'000}}) {
      ResponsePlan plan;
      plan.output_shape = {static_cast<int64_t>(size)};
      plan.has_log_sum_exp = size > 1;
      WorkResult result;
      result.output = MakeBlock(std::string(size, 'o'));
      if (size > 1) result.log_sum_exp = MakeBlock("lse");
      result.device_name = "cpu:0";
      const auto message = Parse<StreamResponse>(
          EncodeResponse(plan, std::move(result), nullptr, tag));
      EXPECT_EQ(message.tag(), tag);
      EXPECT_FALSE(message.has_error());
      EXPECT_EQ(message.response().output(), std::string(size, 'o'));
      EXPECT_EQ(message.response().log_sum_exp(), size > 1 ? "lse" : "");
      EXPECT_EQ(message.response().timings().device_name(), "cpu:0");
    }
  }
  const auto failure = Parse<StreamResponse>(EncodeFailure<StreamResponse>(
      absl::ResourceExhaustedError("full"), absl::Milliseconds(1500), 9));
  EXPECT_EQ(failure.tag(), 9);
  EXPECT_FALSE(failure.has_response());
  EXPECT_EQ(failure.error().code(),
            static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(failure.error().message(), "full");
  EXPECT_EQ(failure.error().retry_delay().seconds(), 1);
}

TEST_F(ResponseEncoderTest, ReferencesTheResultAndGivesItBack) {
  ResponsePlan plan;
  WorkResult result;
  result.output = MakeBlock(std::string(1000, 'o'));
  const void* const data = result.output.data();
  auto keep_alive = std::make_shared<int>(0);
  {
    const grpc::ByteBuffer buffer =
        EncodeResponse(plan, std::move(result), keep_alive);
    std::vector<grpc::Slice> slices;
    ASSERT_TRUE(buffer.Dump(&slices).ok());
    EXPECT_EQ(static_cast<const void*>(slices.back().begin()), data);
    EXPECT_GT(pool_.usage().in_use_bytes, 0u);
    EXPECT_EQ(keep_alive.use_count(), 2);
  }
  EXPECT_EQ(pool_.usage().in_use_bytes, 0u);
  EXPECT_EQ(keep_alive.use_count(), 1);
}

// Two sequences in [2, 2, 3, 4]: the first has m 2 and n 3, the second is empty.
TEST_F(ResponseEncoderTest, SpreadsDenseWeightsOverPaddedOnes) {
  ResponsePlan plan;
  plan.data_type = v1::DATA_TYPE_FLOAT32;
  plan.has_weights = true;
  plan.weights_shape = {2, 2, 3, 4};
  plan.padded_lengths = {{2, 3}, {0, 4}};
  std::vector<float> dense(2 * 2 * 3 * 4, -1);  // leftovers that must go
  std::iota(dense.begin(), dense.begin() + 12, 1.0f);
  WorkResult result;
  result.weights = MakeFloats(dense);
  const auto response = Parse(EncodeResponse(plan, std::move(result), nullptr));
  const std::vector<float> first = {1, 2, 3, 0, 4,  5,  6,  0, 0, 0, 0, 0,
                                    7, 8, 9, 0, 10, 11, 12, 0, 0, 0, 0, 0};
  std::vector<float> expected = first;
  expected.resize(48, 0);
  EXPECT_EQ(Floats(response.weights()), expected);
}

}  // namespace
}  // namespace attention
