#include "client/loadtest/answer_check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/loadtest/input_set.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/float_convert.h"
#include "kernels/validation.h"
#include "tests/client/loadtest/reference_answer.h"

namespace attention::loadtest {
namespace {

using ::testing::HasSubstr;

RequestShape SmallShape() {
  return {.data_type = DataType::kFloat32,
          .batch = 2,
          .query_length = 5,
          .key_length = 7,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 8,
          .head_dim_v = 12,
          .log_sum_exp = true};
}

InputSet MakeInputs(const RequestShape& shape, int rows, int count = 1) {
  auto set = InputSet::Create(
      {{.shape = shape}}, {.inputs_per_shape = count, .verified_rows = rows});
  EXPECT_TRUE(set.ok()) << set.status();
  return *std::move(set);
}

TEST(AnswerCheckTest, AcceptsTheReferenceForEveryKindOfShape) {
  for (DataType type : {DataType::kFloat32, DataType::kFloat16,
                        DataType::kBFloat16, DataType::kFloat8E4M3}) {
    for (Layout layout : {Layout::kBshd, Layout::kBhsd, Layout::kThd}) {
      for (MaskKind mask : {MaskKind::kNone, MaskKind::kCausalTopLeft,
                            MaskKind::kCausalBottomRight}) {
        for (int64_t window : {-1, 0, 2}) {
          for (int64_t key_length : {0, 3, 7}) {
            RequestShape shape = SmallShape();
            shape.data_type = type;
            shape.layout = layout;
            shape.mask = mask;
            shape.window_left = window;
            shape.window_right = window;
            shape.key_length = key_length;
            SCOPED_TRACE(Describe(shape));
            const InputSet inputs = MakeInputs(shape, 40);
            const Input& input = *inputs.inputs(0)[0];
            ASSERT_EQ(input.expectation.rows.size(), 40u);
            const absl::Status status =
                CheckAnswer(shape, input.expectation,
                            ReferenceAnswer(shape, input.request));
            EXPECT_TRUE(status.ok()) << status;
          }
        }
      }
    }
  }
}

TEST(AnswerCheckTest, SamplesTheFirstAndTheLastRowAndOthers) {
  const RequestShape shape = SmallShape();
  const InputSet inputs = MakeInputs(shape, 10);
  const auto& rows = inputs.inputs(0)[0]->expectation.rows;
  ASSERT_EQ(rows.size(), 10u);
  EXPECT_EQ(rows[0].sequence + rows[0].query + rows[0].head, 0);
  EXPECT_EQ(rows[1].sequence, 1);
  EXPECT_EQ(rows[1].query, 4);
  EXPECT_EQ(rows[1].head, 3);
}

TEST(AnswerCheckTest, ComputesFewerRowsWhenKeysAreMany) {
  RequestShape shape = SmallShape();
  shape.batch = 1;
  shape.key_length = 1'000'000;
  shape.query_length = 3;
  shape.heads = shape.kv_heads = 1;
  const InputSet inputs = MakeInputs(shape, 16);
  EXPECT_EQ(inputs.inputs(0)[0]->expectation.rows.size(), 2u);
}

// As a decoding load gets them: some queries at a time.
TEST(AnswerCheckTest, ComparesTheQueriesThatThereAre) {
  RequestShape shape = SmallShape();
  shape.batch = 1;
  const InputSet inputs = MakeInputs(shape, 40);
  const Input& input = *inputs.inputs(0)[0];
  const AttentionResult answer = ReferenceAnswer(shape, input.request);
  const int64_t row_bytes = shape.head_dim_v * int64_t{sizeof(float)};
  int64_t compared = 0;
  for (int64_t query = 0; query < 5; query += 2) {
    const int64_t row = query * shape.heads;
    EXPECT_EQ(
        CheckQueries(shape, input.expectation, query,
                     std::min<int64_t>(2, 5 - query),
                     answer.output.data() + row * row_bytes,
                     answer.log_sum_exp.data() + row * sizeof(float), compared),
        absl::OkStatus());
  }
  EXPECT_EQ(compared, 40);
  // Those of another query are wrong.
  compared = 0;
  EXPECT_EQ(CheckQueries(shape, input.expectation, 0, 1,
                         answer.output.data() + shape.heads * row_bytes,
                         nullptr, compared)
                .code(),
            absl::StatusCode::kDataLoss);
  EXPECT_GT(compared, 0);
}

// One element of a checked row off by 1.5 and by 0.5 tolerances.
TEST(AnswerCheckTest, ToleranceIsThatOfTheType) {
  const struct {
    DataType type;
    Precision precision;
    double absolute, relative;
  } cases[] = {{DataType::kFloat32, Precision::kIeee, 0, 1e-5},
               {DataType::kFloat32, Precision::kTf32, 0, 2e-3},
               {DataType::kFloat16, Precision::kIeee, 1e-3, 2e-3},
               {DataType::kBFloat16, Precision::kIeee, 1e-3, 1.6e-2}};
  for (const auto& test : cases) {
    RequestShape shape = SmallShape();
    shape.data_type = test.type;
    shape.precision = test.precision;
    SCOPED_TRACE(Describe(shape));
    const InputSet inputs = MakeInputs(shape, 4);
    const Input& input = *inputs.inputs(0)[0];
    const AttentionResult right = ReferenceAnswer(shape, input.request);
    // Near zero, so that rounding to the type is small next to the tolerance.
    int64_t element = 0;
    for (int64_t d = 1; d < shape.head_dim_v; ++d) {
      if (std::abs(input.expectation.rows[0].output[d]) <
          std::abs(input.expectation.rows[0].output[element])) {
        element = d;
      }
    }
    const double tolerance =
        test.absolute + test.relative * input.expectation.max_abs_output;
    const double expected = input.expectation.rows[0].output[element];
    for (double factor : {-1.5, -0.5, 0.5, 1.5}) {
      AttentionResult changed = right;
      StoreFromFloat(test.type, changed.output.data(), element,
                     static_cast<float>(expected + factor * tolerance));
      const absl::Status status =
          CheckAnswer(shape, input.expectation, changed);
      if (std::abs(factor) < 1) {
        EXPECT_TRUE(status.ok()) << factor << ": " << status;
      } else {
        EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << factor;
        EXPECT_THAT(std::string(status.message()),
                    HasSubstr(absl::StrCat("output of sequence 0, query 0, "
                                           "head 0, element ",
                                           element)));
      }
    }
  }
}

TEST(AnswerCheckTest, RefusesNanWrongLseAndOtherAnswers) {
  RequestShape shape = SmallShape();
  const InputSet inputs = MakeInputs(shape, 8, 2);
  const Input& input = *inputs.inputs(0)[0];
  const AttentionResult right = ReferenceAnswer(shape, input.request);

  AttentionResult nan = right;
  StoreFromFloat(DataType::kFloat32, nan.output.data(), 3,
                 std::numeric_limits<float>::quiet_NaN());
  EXPECT_FALSE(CheckAnswer(shape, input.expectation, nan).ok());

  AttentionResult lse = right;
  StoreFromFloat(
      DataType::kFloat32, lse.log_sum_exp.data(), 0,
      static_cast<float>(input.expectation.rows[0].log_sum_exp) + 1e-3f);
  const absl::Status status = CheckAnswer(shape, input.expectation, lse);
  EXPECT_THAT(std::string(status.message()), HasSubstr("log_sum_exp of"));

  // The answer to another request of the same shape.
  const AttentionResult other =
      ReferenceAnswer(shape, inputs.inputs(0)[1]->request);
  EXPECT_FALSE(CheckAnswer(shape, input.expectation, other).ok());
}

TEST(AnswerCheckTest, RowsWithoutVisibleKeysMustBeZeroAndMinusInfinity) {
  RequestShape shape = SmallShape();
  shape.key_length = 0;
  const InputSet inputs = MakeInputs(shape, 4);
  const Input& input = *inputs.inputs(0)[0];
  AttentionResult answer = ReferenceAnswer(shape, input.request);
  EXPECT_TRUE(CheckAnswer(shape, input.expectation, answer).ok());
  StoreFromFloat(DataType::kFloat32, answer.log_sum_exp.data(), 0, -1e30f);
  EXPECT_FALSE(CheckAnswer(shape, input.expectation, answer).ok());
}

TEST(AnswerCheckTest, RefusesWrongSizes) {
  const RequestShape shape = SmallShape();
  const InputSet inputs = MakeInputs(shape, 4);
  const Input& input = *inputs.inputs(0)[0];
  const AttentionResult right = ReferenceAnswer(shape, input.request);
  const struct {
    void (*change)(AttentionResult&);
    const char* expected;
  } cases[] = {
      {[](AttentionResult& r) { r.output.pop_back(); }, "output: got shape"},
      {[](AttentionResult& r) { r.output_shape[0] = 1; },
       "[1, 5, 4, 12] in 1920 bytes, expected [2, 5, 4, 12]"},
      {[](AttentionResult& r) { r.data_type = DataType::kFloat16; },
       "got type fp16, expected fp32"},
      {[](AttentionResult& r) { r.log_sum_exp.clear(); },
       "log_sum_exp: got shape"},
      {[](AttentionResult& r) { r.log_sum_exp_shape.push_back(1); },
       "log_sum_exp: got shape"},
  };
  for (const auto& test : cases) {
    AttentionResult changed = right;
    test.change(changed);
    const absl::Status status = CheckAnswer(shape, input.expectation, changed);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr(test.expected));
  }
}

TEST(InputSetTest, ElementsAreStandardNormal) {
  for (DataType type :
       {DataType::kFloat32, DataType::kFloat16, DataType::kBFloat16}) {
    RequestShape shape = SmallShape();
    shape.data_type = type;
    shape.query_length = 2000;
    const InputSet inputs = MakeInputs(shape, 0);
    const Input& input = *inputs.inputs(0)[0];
    const int64_t count = ElementCount(shape.QueryDims());
    double sum = 0, square = 0;
    for (int64_t i = 0; i < count; ++i) {
      const double x = LoadAsFloat(type, input.query.data(), i);
      sum += x;
      square += x * x;
    }
    EXPECT_NEAR(sum / count, 0, 0.02);
    EXPECT_NEAR(square / count, 1, 0.03);
    EXPECT_TRUE(input.expectation.rows.empty());
  }
}

TEST(InputSetTest, MemoryIsBounded) {
  const RequestShape shape = SmallShape();
  const int64_t bytes = shape.RequestBytes();
  const ShapeMix mix = {{.shape = shape}, {.shape = shape}};
  const auto set =
      InputSet::Create(mix, {.inputs_per_shape = 8, .max_bytes = 7 * bytes});
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->inputs(0).size(), 3u);
  EXPECT_EQ(set->inputs(1).size(), 3u);
  const auto refused =
      InputSet::Create(mix, {.inputs_per_shape = 8, .max_bytes = bytes});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(InputSetTest, SeedDecidesAndInputsDiffer) {
  const RequestShape shape = SmallShape();
  const ShapeMix mix = {{.shape = shape}};
  const auto first = InputSet::Create(mix, {.seed = 1});
  const auto same = InputSet::Create(mix, {.seed = 1});
  const auto other = InputSet::Create(mix, {.seed = 2});
  ASSERT_TRUE(first.ok() && same.ok() && other.ok());
  EXPECT_EQ(first->inputs(0)[3]->value, same->inputs(0)[3]->value);
  EXPECT_NE(first->inputs(0)[3]->value, other->inputs(0)[3]->value);
  EXPECT_NE(first->inputs(0)[3]->value, first->inputs(0)[4]->value);
}

TEST(InputSetTest, RequestSaysWhatTheShapeSays) {
  RequestShape shape = SmallShape();
  shape.layout = Layout::kThd;
  shape.mask = MaskKind::kCausalTopLeft;
  shape.window_left = 3;
  shape.algorithm = Algorithm::kThreeStep;
  const InputSet inputs = MakeInputs(shape, 0);
  const AttentionRequest& request = inputs.inputs(0)[0]->request;
  EXPECT_EQ(request.query_lengths, std::vector<int64_t>({5, 5}));
  EXPECT_EQ(request.key_lengths, std::vector<int64_t>({7, 7}));
  EXPECT_EQ(request.query.shape, shape.QueryDims());
  EXPECT_EQ(request.query.size_bytes, size_t{10 * 4 * 8 * 4});
  EXPECT_EQ(request.mask, MaskKind::kCausalTopLeft);
  EXPECT_EQ(request.window_left, 3);
  EXPECT_EQ(request.window_right, std::nullopt);
  EXPECT_EQ(request.algorithm, Algorithm::kThreeStep);
  EXPECT_TRUE(request.return_log_sum_exp);
}

}  // namespace
}  // namespace attention::loadtest
