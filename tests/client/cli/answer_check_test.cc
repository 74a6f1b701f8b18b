#include "client/cli/answer_check.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/float_convert.h"

namespace attention::cli {
namespace {

using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::string Encode(DataType type, const std::vector<float>& values) {
  std::string bytes(values.size() * ElementBytes(type), '\0');
  for (size_t i = 0; i < values.size(); ++i) {
    StoreFromFloat(type, bytes.data(), static_cast<int64_t>(i), values[i]);
  }
  return bytes;
}

std::string Bytes(const std::vector<float>& values) {
  return Encode(DataType::kFloat32, values);
}

// One query head over two keys with equal scores: the answer is the mean of the
// values, the log-sum-exp log(2), both weights 1/2.
class AnswerCheckTest : public testing::Test {
 protected:
  AnswerCheckTest() { Bind(); }

  void Bind() {
    request_.query = TensorView::Contiguous(query_.data(), {1, 1, 1, 2}, 4);
    request_.key = TensorView::Contiguous(key_.data(), {1, 2, 1, 2}, 4);
    request_.value = TensorView::Contiguous(value_.data(), {1, 2, 1, 2}, 4);
    request_.return_log_sum_exp = true;
    result_.output_shape = {1, 1, 1, 2};
    result_.output = Bytes({2, 30});
    result_.log_sum_exp_shape = {1, 1, 1};
    result_.log_sum_exp = Bytes({std::log(2.0f)});
  }

  CheckReport Check() const {
    const auto report = CheckAnswer(request_, result_);
    EXPECT_TRUE(report.ok()) << report.status();
    return *report;
  }

  std::vector<float> query_ = {0, 0};
  std::vector<float> key_ = {5, 6, 7, 8};
  std::vector<float> value_ = {1, 10, 3, 50};
  AttentionRequest request_;
  AttentionResult result_;
};

TEST_F(AnswerCheckTest, AcceptsTheRightAnswer) {
  const CheckReport report = Check();
  EXPECT_EQ(report.output_error, 0);
  EXPECT_LT(report.log_sum_exp_error, 1e-7);
  EXPECT_LE(report.worst, 0.01);
}

TEST_F(AnswerCheckTest, ErrorsCountInUnitsOfTheTolerance) {
  result_.output = Bytes({2, 30.0006f});  // 1e-5 * 30 allowed
  EXPECT_NEAR(Check().output_error, 6e-4, 2e-6);
  EXPECT_NEAR(Check().worst, 2, 0.01);
  request_.precision = Precision::kTf32;  // 2e-3 * 30 allowed
  EXPECT_NEAR(Check().worst, 0.01, 1e-3);
}

TEST_F(AnswerCheckTest, NoticesAWrongLogSumExp) {
  result_.log_sum_exp = Bytes({std::log(2.0f) + 1e-3f});
  EXPECT_GT(Check().worst, 50);
  request_.return_log_sum_exp = false;
  EXPECT_EQ(Check().worst, 0);
}

TEST_F(AnswerCheckTest, NoticesWrongWeights) {
  request_.return_weights = true;
  result_.weights_shape = {1, 1, 1, 2};
  result_.weights = Bytes({0.5f, 0.5f});
  EXPECT_LE(Check().worst, 0.01);
  result_.weights = Bytes({0.25f, 0.75f});
  EXPECT_EQ(Check().weights_error, 0.25);
  EXPECT_GT(Check().worst, 1);
}

TEST_F(AnswerCheckTest, RowsWithoutKeysMustBeZeroAndMinusInfinity) {
  request_.key = TensorView::Contiguous(key_.data(), {1, 0, 1, 2}, 4);
  request_.value = TensorView::Contiguous(value_.data(), {1, 0, 1, 2}, 4);
  EXPECT_EQ(Check().worst, kInfinity);
  result_.output = Bytes({0, 0});
  result_.log_sum_exp = Bytes({-kInfinity});
  EXPECT_EQ(Check().worst, 0);
  result_.log_sum_exp = Bytes({kInfinity});
  EXPECT_EQ(Check().worst, kInfinity);
  result_.log_sum_exp = Bytes({0});
  EXPECT_EQ(Check().worst, kInfinity);
}

TEST_F(AnswerCheckTest, NanMustBeMetAndIsNeverAccepted) {
  result_.output = Bytes({2, NAN});
  EXPECT_EQ(Check().worst, kInfinity);
  value_[3] = NAN;
  EXPECT_LE(Check().worst, 0.01);
  result_.output = Bytes({2, 30});
  EXPECT_EQ(Check().worst, kInfinity);
}

TEST_F(AnswerCheckTest, SixteenBitTypesHaveWiderTolerances) {
  for (const DataType type : {DataType::kFloat16, DataType::kBFloat16}) {
    const std::string q = Encode(type, {0, 0}), k = Encode(type, {0, 0, 0, 0}),
                      v = Encode(type, value_);
    request_.data_type = type;
    request_.query = TensorView::Contiguous(q.data(), {1, 1, 1, 2}, 2);
    request_.key = TensorView::Contiguous(k.data(), {1, 2, 1, 2}, 2);
    request_.value = TensorView::Contiguous(v.data(), {1, 2, 1, 2}, 2);
    result_.data_type = type;
    result_.output = Encode(type, {2, 31});
    const double allowed =
        type == DataType::kFloat16 ? 1e-3 + 2e-3 * 30 : 1e-3 + 1.6e-2 * 30;
    EXPECT_NEAR(Check().worst, 1 / allowed, 1e-6);
  }
}

TEST_F(AnswerCheckTest, EightBitTensorsHaveScalesAndAnswersInBFloat16) {
  constexpr DataType kType = DataType::kFloat8E4M3;
  // Two query heads share one K/V head; their scores favour keys of their own.
  const std::string q = Encode(kType, {1, 1}), k = Encode(kType, {1, -1}),
                    v = Encode(kType, {8, 16});
  request_.data_type = kType;
  request_.query = TensorView::Contiguous(q.data(), {1, 1, 2, 1}, 1);
  request_.key = TensorView::Contiguous(k.data(), {1, 2, 1, 1}, 1);
  request_.value = TensorView::Contiguous(v.data(), {1, 2, 1, 1}, 1);
  request_.query_scales = {0.25f, 0.5f};
  request_.key_scales = {2};
  request_.value_scales = {0.125f};
  result_.data_type = DataType::kBFloat16;
  result_.output_shape = {1, 1, 2, 1};
  result_.log_sum_exp_shape = {1, 1, 2};
  const auto weight = [](double score) {  // of the second key
    return 1 / (1 + std::exp(2 * score));
  };
  const auto log_sum_exp = [](double score) {
    return static_cast<float>(std::log(std::exp(score) + std::exp(-score)));
  };
  result_.output = Encode(
      DataType::kBFloat16, {static_cast<float>(1 + weight(0.5)),
                            static_cast<float>(1 + weight(1))});
  result_.log_sum_exp = Bytes({log_sum_exp(0.5), log_sum_exp(1)});
  EXPECT_LE(Check().worst, 0.3);  // one rounding
  request_.value_scales = {0.15f};
  EXPECT_GT(Check().worst, 1);
  result_.data_type = DataType::kFloat16;
  EXPECT_THAT(CheckAnswer(request_, result_).status().message(),
              HasSubstr("of type fp16; expected bf16"));
}

TEST_F(AnswerCheckTest, ReadsBothLayoutsAndGroupedHeads) {
  // Two query heads share one K/V head; three queries, one key: every output is
  // the value.
  const std::vector<float> q(2 * 3 * 2, 1.0f), k = {1, 2}, v = {4, 5};
  request_.return_log_sum_exp = false;
  request_.key = TensorView::Contiguous(k.data(), {1, 1, 1, 2}, 4);
  request_.value = TensorView::Contiguous(v.data(), {1, 1, 1, 2}, 4);
  result_.output = Bytes({4, 5, 4, 5, 4, 5, 4, 5, 4, 5, 4, 5});
  request_.query = TensorView::Contiguous(q.data(), {1, 3, 2, 2}, 4);
  result_.output_shape = {1, 3, 2, 2};
  EXPECT_EQ(Check().worst, 0);
  request_.layout = Layout::kBhsd;
  request_.query = TensorView::Contiguous(q.data(), {1, 2, 3, 2}, 4);
  result_.output_shape = {1, 2, 3, 2};
  EXPECT_EQ(Check().worst, 0);
}

TEST_F(AnswerCheckTest, RefusesAnswersOfAnotherShape) {
  result_.output_shape = {1, 1, 2, 1};
  const absl::Status status = CheckAnswer(request_, result_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("output has shape [1, 1, 2, 1]; expected [1, 1, 1, 2]"));
}

}  // namespace
}  // namespace attention::cli
