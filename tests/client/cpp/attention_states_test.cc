#include "client/cpp/attention_states.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/float_convert.h"
#include "tests/support/kernel_backend.h"

namespace attention::test {
namespace {

using ::testing::HasSubstr;

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

void Put(DataType type, std::string& to, int64_t index, double value) {
  StoreFromFloat(type, to.data(), index, static_cast<float>(value));
}
float Get(DataType type, const std::string& from, int64_t index) {
  return LoadAsFloat(type, from.data(), index);
}

AttentionResult MakeState(DataType type, int64_t rows, int64_t columns) {
  AttentionResult state;
  state.data_type = type;
  state.output_shape = {1, rows, 1, columns};
  state.output.resize(rows * columns * ElementBytes(type));
  state.log_sum_exp_shape = {1, rows, 1};
  state.log_sum_exp.resize(rows * sizeof(float));
  return state;
}

// One row of [columns] values with its log-sum-exp.
AttentionResult Row(std::vector<float> output, float log_sum_exp) {
  AttentionResult state =
      MakeState(DataType::kFloat32, 1, static_cast<int64_t>(output.size()));
  for (size_t i = 0; i < output.size(); ++i) {
    Put(DataType::kFloat32, state.output, static_cast<int64_t>(i), output[i]);
  }
  Put(DataType::kFloat32, state.log_sum_exp, 0, log_sum_exp);
  return state;
}

// Attention of each row's scores over the values of keys [begin, end), in
// double.
AttentionResult Attend(DataType type, const std::vector<double>& scores,
                       const std::vector<double>& values, int64_t rows,
                       int64_t keys, int64_t columns, int64_t begin,
                       int64_t end) {
  AttentionResult state = MakeState(type, rows, columns);
  for (int64_t row = 0; row < rows; ++row) {
    double sum = 0;
    std::vector<double> output(columns);
    for (int64_t key = begin; key < end; ++key) {
      const double weight = std::exp(scores[row * keys + key]);
      sum += weight;
      for (int64_t i = 0; i < columns; ++i) {
        output[i] += weight * values[key * columns + i];
      }
    }
    Put(DataType::kFloat32, state.log_sum_exp, row, std::log(sum));
    for (int64_t i = 0; i < columns; ++i) {
      Put(type, state.output, row * columns + i,
          sum == 0 ? 0 : output[i] / sum);
    }
  }
  return state;
}

class MergedPartsTest : public ::testing::TestWithParam<DataType> {};

TEST_P(MergedPartsTest, AreTheWhole) {
  SCOPED_TRACE(absl::StrCat("repeat with --gtest_random_seed=", RunSeed()));
  std::mt19937_64 random(RunSeed());
  std::normal_distribution<double> normal;
  const DataType type = GetParam();
  const double tolerance = type == DataType::kFloat32   ? 2e-6
                           : type == DataType::kFloat16 ? 4e-3
                                                        : 3e-2;
  struct Sizes {
    int rows, keys, columns;
  };
  for (const Sizes& sizes :
       {Sizes{1, 1, 1}, Sizes{3, 50, 7}, Sizes{17, 129, 64}}) {
    const int rows = sizes.rows;
    const int keys = sizes.keys;
    const int columns = sizes.columns;
    std::vector<double> scores(rows * keys), values(keys * columns);
    for (double& score : scores) score = 4 * normal(random);
    for (double& value : values) value = normal(random);
    const auto attend = [&](int64_t begin, int64_t end) {
      return Attend(type, scores, values, rows, keys, columns, begin, end);
    };
    std::vector<AttentionResult> parts;
    for (int64_t begin = 0; begin < keys;) {  // some of them empty
      const int64_t end =
          std::uniform_int_distribution<int64_t>(begin, keys)(random);
      parts.push_back(attend(begin, end));
      begin = end;
    }
    const auto merged = MergeAttentionStates(parts);
    ASSERT_TRUE(merged.ok()) << merged.status();
    const AttentionResult whole = attend(0, keys);
    EXPECT_EQ(merged->output_shape, whole.output_shape);
    for (int64_t i = 0; i < rows * columns; ++i) {
      ASSERT_NEAR(Get(type, merged->output, i), Get(type, whole.output, i),
                  tolerance);
    }
    for (int64_t row = 0; row < rows; ++row) {
      ASSERT_NEAR(Get(DataType::kFloat32, merged->log_sum_exp, row),
                  Get(DataType::kFloat32, whole.log_sum_exp, row), 4e-6);
    }
  }
}

TEST_P(MergedPartsTest, OneStateStaysAsItIs) {
  std::mt19937_64 random(RunSeed());
  std::normal_distribution<double> normal;
  AttentionResult state = MakeState(GetParam(), 5, 33);
  for (int64_t i = 0; i < 5 * 33; ++i) {
    Put(GetParam(), state.output, i, normal(random));
  }
  for (int64_t i = 0; i < 5; ++i) {
    Put(DataType::kFloat32, state.log_sum_exp, i, 100 * normal(random));
  }
  const auto merged = MergeAttentionStates({state});
  ASSERT_TRUE(merged.ok());
  EXPECT_EQ(merged->output, state.output);
  EXPECT_EQ(merged->log_sum_exp, state.log_sum_exp);
}

INSTANTIATE_TEST_SUITE_P(Types, MergedPartsTest,
                         ::testing::Values(DataType::kFloat32,
                                           DataType::kFloat16,
                                           DataType::kBFloat16));

TEST(MergeAttentionStatesTest, APartWithoutKeysAddsNothing) {
  // Not even if its output is NaN.
  const auto merged = MergeAttentionStates(
      {Row({kNaN, kNaN}, kNone), Row({1, 2}, 0.5f), Row({7, 7}, kNone)});
  ASSERT_TRUE(merged.ok());
  EXPECT_EQ(merged->output, Row({1, 2}, 0).output);
  EXPECT_EQ(merged->log_sum_exp, Row({}, 0.5f).log_sum_exp);
}

TEST(MergeAttentionStatesTest, ARowWithoutKeysIsZero) {
  const auto merged =
      MergeAttentionStates({Row({kNaN}, kNone), Row({3}, kNone)});
  ASSERT_TRUE(merged.ok());
  EXPECT_EQ(merged->output, Row({0}, 0).output);
  EXPECT_EQ(merged->log_sum_exp, Row({}, kNone).log_sum_exp);
}

TEST(MergeAttentionStatesTest, NaNStays) {
  for (const auto& part : {Row({1, kNaN}, 0), Row({1, 2}, kNaN)}) {
    const auto merged = MergeAttentionStates({Row({5, 6}, 1), part});
    ASSERT_TRUE(merged.ok());
    EXPECT_TRUE(std::isnan(Get(DataType::kFloat32, merged->output, 1)));
  }
}

TEST(MergeAttentionStatesTest, ScoresOfAnySizeAreWeighed) {
  for (const float level : {-3e38f, -1000.0f, 1000.0f, 3e38f}) {
    const auto merged =
        MergeAttentionStates({Row({2}, level), Row({4}, level)});
    ASSERT_TRUE(merged.ok());
    EXPECT_EQ(merged->output, Row({3}, 0).output);
    EXPECT_FLOAT_EQ(Get(DataType::kFloat32, merged->log_sum_exp, 0),
                    static_cast<float>(level + std::log(2.0)));
  }
}

TEST(MergeAttentionStatesTest, NoRowsAndNoColumns) {
  for (const auto& [rows, columns] : {std::pair(0, 8), std::pair(4, 0)}) {
    AttentionResult state = MakeState(DataType::kFloat16, rows, columns);
    const auto merged = MergeAttentionStates({state, state});
    ASSERT_TRUE(merged.ok()) << merged.status();
    EXPECT_TRUE(merged->output.empty());
  }
}

TEST(MergeAttentionStatesTest, RefusesStatesThatDoNotFit) {
  const auto expect = [](std::vector<AttentionResult> states,
                         const std::string& message) {
    const absl::Status status = MergeAttentionStates(states).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  };
  expect({}, "at least one state");
  expect({Row({1, 2}, 0), Row({1}, 0)}, "state 1: data type and output shape");
  AttentionResult without = Row({1}, 0);
  without.log_sum_exp_shape.clear();
  without.log_sum_exp.clear();
  expect({without}, "state 0: log_sum_exp must have the output's shape");
  AttentionResult moved = Row({1}, 0);
  moved.output.clear();
  expect({moved}, "output must have the 4 bytes of its shape; got 0");
}

}  // namespace
}  // namespace attention::test
