#include "server/rpc/step_encoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "server/engine/error_reason.h"
#include "server/memory/memory_pool.h"
#include "server/rpc/response_parts.h"

namespace attention::test {
namespace {

using ::testing::ElementsAre;
using ::testing::Each;

constexpr int64_t kOutputBytes = 8;  // of a token
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class StepEncoderTest : public testing::Test {
 protected:
  Block Filled(const std::vector<float>& values) {
    auto block = pool_.Allocate(values.size() * sizeof(float));
    EXPECT_TRUE(block.ok());
    std::memcpy(block->data(), values.data(), values.size() * sizeof(float));
    return *std::move(block);
  }

  // The result of a work whose tokens have these outputs (two floats each, equal)
  // and log-sum-exps.
  WorkResult Result(const std::vector<float>& tokens, size_t sequence_count) {
    std::vector<float> output;
    for (float value : tokens) output.insert(output.end(), 2, value);
    WorkResult result;
    result.output = Filled(output);
    result.log_sum_exp = Filled(tokens);
    result.sequence_statuses.resize(sequence_count);
    result.sequence_key_lengths.resize(sequence_count, 17);
    result.device_name = "cpu:0";
    return result;
  }

  static StepsPlan Plan(const std::vector<StepsPlan::Item>& items) {
    StepsPlan plan;
    plan.items.assign(items.begin(), items.end());
    plan.output_token_bytes = kOutputBytes;
    plan.log_sum_exp_token_bytes = sizeof(float);
    return plan;
  }

  template <typename Response>
  static Response Parse(const grpc::ByteBuffer& buffer) {
    grpc::Slice slice;
    EXPECT_TRUE(buffer.DumpToSingleSlice(&slice).ok());
    Response response;
    EXPECT_TRUE(response.ParseFromArray(slice.begin(), slice.size()));
    return response;
  }

  static std::vector<float> Floats(const std::string& bytes) {
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  static std::optional<absl::Duration> Delay(const absl::Status& status) {
    if (!absl::IsResourceExhausted(status)) return std::nullopt;
    return absl::Seconds(2);
  }

  MemoryPool pool_{{.name = "test", .budget_bytes = 1 << 20},
                   MakeHostAllocator()};
  std::shared_ptr<int> keep_alive_ = std::make_shared<int>();
};

TEST_F(StepEncoderTest, TokensOfSeveralWorksComeInTheOrderOfItems) {
  const StepsPlan plan = Plan({{.token_count = 1, .work = 0, .sequence = 0},
                               {.token_count = 2, .work = 0, .sequence = 1},
                               {.token_count = 1, .work = 1, .sequence = 0},
                               {.token_count = 1, .work = 0, .sequence = 2}});
  std::vector<absl::StatusOr<WorkResult>> results;
  results.push_back(Result({1, 2, 3, 5}, 3));
  results.push_back(Result({4}, 1));
  ASSERT_TRUE(CommonError(plan, true, absl::MakeSpan(results)).ok());
  const auto response = Parse<v1::StreamDecodeResponse>(EncodeDecodeResponse(
      plan, absl::MakeSpan(results), -5, Delay, keep_alive_));
  EXPECT_EQ(response.tag(), -5);
  EXPECT_EQ(response.item_errors_size(), 0);
  EXPECT_EQ(response.timings().device_name(), "cpu:0");
  EXPECT_THAT(Floats(response.output()),
              ElementsAre(1, 1, 2, 2, 3, 3, 4, 4, 5, 5));
  EXPECT_THAT(Floats(response.log_sum_exp()), ElementsAre(1, 2, 3, 4, 5));
  // Sent, so that nothing holds the pool's memory any more.
  EXPECT_EQ(keep_alive_.use_count(), 1);
  EXPECT_EQ(pool_.usage().in_use_bytes, 0u);
}

TEST_F(StepEncoderTest, FailedItemsHaveNeutralResultsAndAnError) {
  // More than one piece of what stands for results.
  constexpr int64_t kTokens = 20'000;
  const StepsPlan plan = Plan(
      {{.token_count = 1, .work = 0, .sequence = 0},
       {.token_count = kTokens,
        .status = WithFact(WithReason(absl::NotFoundError("elsewhere"),
                                      error_reason::kWrongReplica),
                           error_fact::kReplica, "r2")},
       {.token_count = 1, .work = 0, .sequence = 1},
       {.token_count = 1, .work = 1, .sequence = 0}});
  std::vector<absl::StatusOr<WorkResult>> results;
  results.push_back(Result({1, 0}, 2));
  results[0]->sequence_statuses[1] = WithReason(
      absl::AlreadyExistsError("taken"), error_reason::kPositionTaken);
  results.push_back(WithReason(absl::ResourceExhaustedError("full"),
                               error_reason::kQueueFull));
  ASSERT_TRUE(CommonError(plan, true, absl::MakeSpan(results)).ok());
  const auto response = Parse<v1::DecodeResponse>(
      EncodeDecodeResponse(plan, absl::MakeSpan(results), std::nullopt, Delay,
                           keep_alive_));
  ASSERT_EQ(response.item_errors_size(), 3);
  const v1::ItemError& elsewhere = response.item_errors(0);
  EXPECT_EQ(elsewhere.item_index(), 1);
  EXPECT_EQ(elsewhere.error().code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(elsewhere.error().reason(), "WRONG_REPLICA");
  EXPECT_EQ(elsewhere.error().message(), "elsewhere");
  EXPECT_EQ(elsewhere.error().metadata().at("replica"), "r2");
  EXPECT_FALSE(elsewhere.error().has_retry_delay());
  EXPECT_EQ(response.item_errors(1).item_index(), 2);
  EXPECT_EQ(response.item_errors(1).error().reason(), "POSITION_TAKEN");
  EXPECT_EQ(response.item_errors(2).item_index(), 3);
  EXPECT_EQ(response.item_errors(2).error().reason(), "QUEUE_FULL");
  EXPECT_EQ(response.item_errors(2).error().retry_delay().seconds(), 2);

  const std::vector<float> output = Floats(response.output());
  ASSERT_EQ(output.size(), 2u * (kTokens + 3));
  EXPECT_EQ(output[0], 1);
  EXPECT_EQ(output[1], 1);
  EXPECT_THAT(std::vector<float>(output.begin() + 2, output.end()), Each(0));
  const std::vector<float> log_sum_exp = Floats(response.log_sum_exp());
  ASSERT_EQ(log_sum_exp.size(), kTokens + 3u);
  EXPECT_EQ(log_sum_exp[0], 1);
  EXPECT_EQ(log_sum_exp[1], -kInfinity);
  EXPECT_EQ(log_sum_exp[kTokens], -kInfinity);
  EXPECT_EQ(log_sum_exp[kTokens + 2], -kInfinity);
}

TEST_F(StepEncoderTest, WithoutAnySuccessThereAreNoTensors) {
  const StepsPlan plan = Plan(
      {{.token_count = 1, .status = absl::NotFoundError("gone")},
       {.token_count = 1, .status = absl::NotFoundError("gone")}});
  const auto response = Parse<v1::DecodeResponse>(
      EncodeDecodeResponse(plan, {}, std::nullopt, Delay, keep_alive_));
  EXPECT_EQ(response.item_errors_size(), 2);
  EXPECT_TRUE(response.output().empty());
  EXPECT_TRUE(response.log_sum_exp().empty());
  EXPECT_FALSE(response.has_timings());
}

TEST_F(StepEncoderTest, WhatConcernsAllFailsAll) {
  const StepsPlan plan =
      Plan({{.token_count = 1, .status = absl::NotFoundError("gone")},
            {.token_count = 1, .work = 0}});
  std::vector<absl::StatusOr<WorkResult>> results;
  results.push_back(absl::ResourceExhaustedError("full"));
  EXPECT_EQ(CommonError(plan, true, absl::MakeSpan(results)).message(), "full");

  const StepsPlan one = Plan({{.token_count = 1, .work = 0}});
  results[0] = Result({1}, 1);
  EXPECT_TRUE(CommonError(one, false, absl::MakeSpan(results)).ok());
  results[0]->sequence_statuses[0] = absl::OutOfRangeError("gap");
  EXPECT_EQ(CommonError(one, false, absl::MakeSpan(results)).message(), "gap");
  // As an item it is told in the answer.
  EXPECT_TRUE(CommonError(one, true, absl::MakeSpan(results)).ok());
}

TEST_F(StepEncoderTest, AnswersOfOneStep) {
  const auto append = Parse<v1::AppendKeysValuesResponse>(
      EncodeAppendResponse(Result({}, 1)));
  EXPECT_EQ(append.token_count(), 17);
  EXPECT_EQ(append.timings().device_name(), "cpu:0");
  const auto attend = Parse<v1::AttendSessionResponse>(
      EncodeAttendResponse(Result({6, 7}, 1), keep_alive_));
  EXPECT_THAT(Floats(attend.output()), ElementsAre(6, 6, 7, 7));
  EXPECT_THAT(Floats(attend.log_sum_exp()), ElementsAre(6, 7));
  const auto failure =
      Parse<v1::StreamDecodeResponse>(EncodeFailure<v1::StreamDecodeResponse>(
          absl::ResourceExhaustedError("full"), absl::Seconds(1), 9));
  EXPECT_EQ(failure.tag(), 9);
  EXPECT_EQ(failure.error().code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(failure.error().retry_delay().seconds(), 1);
}

}  // namespace
}  // namespace attention::test
