#include "kernels/validation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace attention {
namespace {

using testing::HasSubstr;

// Parameters that are valid until a test breaks one of them.
class ValidationTest : public testing::Test {
 protected:
  ValidationTest() {
    params.config = {.data_type = DataType::kBFloat16,
                     .head_dim_qk = 64,
                     .head_dim_v = 32,
                     .query_head_count = 4,
                     .kv_head_count = 2};
    params.sequences = sequences;
    params.sequence_count = 2;
    for (Sequence& s : sequences) {
      s.query = s.key = s.value = memory;
      s.output = memory;
      s.query_length = 3;
      s.key_length = 5;
    }
  }

  void ExpectInvalid(const std::vector<std::string>& parts) {
    const absl::Status status = ValidateParams(params);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    for (const std::string& part : parts) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(part));
    }
  }

  char memory[16] = {};
  Sequence sequences[2];
  AttentionParams params;
};

TEST_F(ValidationTest, AcceptsValidParameters) {
  EXPECT_TRUE(ValidateParams(params).ok());
}

TEST_F(ValidationTest, AcceptsEmptyBatchesHeadsAndLengths) {
  params.sequence_count = 0;
  EXPECT_TRUE(ValidateParams(params).ok());
  params.sequence_count = 2;
  sequences[0] = {};  // M = N = 0 without any tensor
  EXPECT_TRUE(ValidateParams(params).ok());
  sequences[0] = sequences[1];
  sequences[0].key_length = 0;
  sequences[0].key = sequences[0].value = nullptr;
  EXPECT_TRUE(ValidateParams(params).ok());
  params.config.query_head_count = params.config.kv_head_count = 0;
  EXPECT_TRUE(ValidateParams(params).ok());
}

TEST_F(ValidationTest, AcceptsTheWholeRangeOfHeadDims) {
  for (int32_t dim : {1, 7, 100, kMaxHeadDim}) {
    params.config.head_dim_qk = dim;
    params.config.head_dim_v = kMaxHeadDim + 1 - dim;
    EXPECT_TRUE(ValidateParams(params).ok()) << dim;
  }
}

TEST_F(ValidationTest, AcceptsAnyFiniteScaleAndAnyWindow) {
  for (double scale : {0.0, -0.0, -2.5, 1e300, 5e-324}) {
    sequences[1].scale = scale;
    EXPECT_TRUE(ValidateParams(params).ok()) << scale;
  }
  sequences[1].window_left = std::numeric_limits<int64_t>::max();
  sequences[1].window_right = kUnlimitedWindow;
  EXPECT_TRUE(ValidateParams(params).ok());
}

TEST_F(ValidationTest, RefusesHeadDimsOutOfRange) {
  for (int32_t dim :
       {0, -1, kMaxHeadDim + 1, std::numeric_limits<int>::max()}) {
    params.config.head_dim_qk = dim;
    ExpectInvalid({"head_dim_qk", "[1, 256]", "got " + std::to_string(dim)});
    params.config.head_dim_qk = 64;
    params.config.head_dim_v = dim;
    ExpectInvalid({"head_dim_v", "[1, 256]", "got " + std::to_string(dim)});
    params.config.head_dim_v = 64;
  }
}

TEST_F(ValidationTest, RefusesHeadCountsThatDoNotDivide) {
  const std::pair<int32_t, int32_t> bad[] = {{4, 3}, {2, 4}, {4, 0}, {1, 2}};
  for (const auto& [query_heads, kv_heads] : bad) {
    params.config.query_head_count = query_heads;
    params.config.kv_head_count = kv_heads;
    ExpectInvalid({"query_head_count must be a multiple of kv_head_count",
                   std::to_string(query_heads), std::to_string(kv_heads)});
  }
}

TEST_F(ValidationTest, RefusesNegativeHeadCounts) {
  params.config.query_head_count = -4;
  ExpectInvalid({"must not be negative", "query_head_count -4"});
  params.config.query_head_count = 4;
  params.config.kv_head_count = -2;
  ExpectInvalid({"must not be negative", "kv_head_count -2"});
}

TEST_F(ValidationTest, RefusesUnknownEnumerators) {
  const HeadConfig good = params.config;
  for (int32_t number : {-1, 77}) {
    const std::string got = "got " + std::to_string(number);
    params.config = good;
    params.config.data_type = static_cast<DataType>(number);
    ExpectInvalid({"data_type", "[0, 3]", got});
    params.config = good;
    params.config.mask = static_cast<MaskKind>(number);
    ExpectInvalid({"mask", "[0, 2]", got});
    params.config = good;
    params.config.precision = static_cast<Precision>(number);
    ExpectInvalid({"precision", "[0, 1]", got});
    params.config = good;
    params.config.algorithm = static_cast<Algorithm>(number);
    ExpectInvalid({"algorithm", "[0, 1]", got});
  }
}

TEST_F(ValidationTest, RefusesLengthsOutOfRange) {
  constexpr int64_t kTooLong = (int64_t{1} << 40) + 1;
  for (int64_t length : {int64_t{-1}, kTooLong}) {
    const std::string got = "got " + std::to_string(length);
    sequences[1].query_length = length;
    ExpectInvalid({"sequence 1: query_length", "[0, 1099511627776]", got});
    sequences[1].query_length = 3;
    sequences[1].key_length = length;
    ExpectInvalid({"sequence 1: key_length", "[0, 1099511627776]", got});
    sequences[1].key_length = 5;
  }
}

TEST_F(ValidationTest, RefusesScalesThatAreNotFinite) {
  sequences[0].scale = std::numeric_limits<double>::quiet_NaN();
  ExpectInvalid({"sequence 0: scale must be finite", "nan"});
  sequences[0].scale = -std::numeric_limits<double>::infinity();
  ExpectInvalid({"scale must be finite", "-inf"});
}

TEST_F(ValidationTest, RefusesWindowsBelowUnlimited) {
  sequences[1].window_left = -2;
  ExpectInvalid({"sequence 1: window_left", "at least -1", "got -2"});
  sequences[1].window_left = 0;
  sequences[1].window_right = std::numeric_limits<int64_t>::min();
  ExpectInvalid({"window_right", "at least -1", "-9223372036854775808"});
}

TEST_F(ValidationTest, RefusesMissingTensors) {
  const Sequence good = sequences[1];
  const auto expect_null = [&](auto breakage, const char* field) {
    breakage(sequences[1]);
    ExpectInvalid({"sequence 1: ", field, "must not be null"});
    sequences[1] = good;
  };
  expect_null([](Sequence& s) { s.query = nullptr; }, "query");
  expect_null([](Sequence& s) { s.output = nullptr; }, "output");
  expect_null([](Sequence& s) { s.key = nullptr; }, "key");
  expect_null([](Sequence& s) { s.value = nullptr; }, "value");
}

TEST_F(ValidationTest, RefusesWeightsFromTheStreamingAlgorithm) {
  sequences[1].weights = memory;
  ExpectInvalid({"sequence 1: ", "weights", "three-step"});
  params.config.algorithm = Algorithm::kThreeStep;
  EXPECT_TRUE(ValidateParams(params).ok());
}

TEST_F(ValidationTest, AcceptsFloat8WithAndWithoutScales) {
  params.config.data_type = DataType::kFloat8E4M3;
  EXPECT_TRUE(ValidateParams(params).ok());
  const float scales[4] = {1e-45f, 1.0f, 0.37f,
                           std::numeric_limits<float>::max()};
  sequences[1].query_scales = scales;
  EXPECT_TRUE(ValidateParams(params).ok());
  sequences[1].key_scales = sequences[1].value_scales = scales;
  EXPECT_TRUE(ValidateParams(params).ok());
}

TEST_F(ValidationTest, RefusesFloat8FromTheThreeStepAlgorithm) {
  params.config.data_type = DataType::kFloat8E4M3;
  params.config.algorithm = Algorithm::kThreeStep;
  ExpectInvalid({"data_type fp8", "streaming"});
}

TEST_F(ValidationTest, RefusesScalesThatAreNotFiniteAndMoreThanZero) {
  params.config.data_type = DataType::kFloat8E4M3;
  const float infinity = std::numeric_limits<float>::infinity();
  for (float bad : {0.0f, -0.5f, infinity, -infinity,
                    std::numeric_limits<float>::quiet_NaN()}) {
    const float of_query[4] = {1, 1, 1, bad};
    const float of_kv[2] = {1, bad};
    const Sequence good = sequences[1];
    sequences[1].query_scales = of_query;
    ExpectInvalid({"sequence 1: query_scales[3]", "finite and more than 0"});
    sequences[1] = good;
    sequences[1].key_scales = of_kv;
    ExpectInvalid({"sequence 1: key_scales[1]", "finite and more than 0"});
    sequences[1] = good;
    sequences[1].value_scales = of_kv;
    ExpectInvalid({"sequence 1: value_scales[1]", "finite and more than 0"});
    sequences[1] = good;
  }
}

TEST_F(ValidationTest, RefusesScalesOfOtherTypes) {
  const float scales[4] = {1, 1, 1, 1};
  for (DataType type :
       {DataType::kFloat32, DataType::kFloat16, DataType::kBFloat16}) {
    params.config.data_type = type;
    sequences[0].value_scales = scales;
    ExpectInvalid({"sequence 0: value_scales", "fp8 only", ToString(type)});
  }
}

TEST_F(ValidationTest, RefusesNegativeSequenceCount) {
  params.sequence_count = -3;
  ExpectInvalid({"sequence_count", "must not be negative", "got -3"});
}

// As ValidationTest, for resident keys and values: 5 tokens in pages of 2.
class PagedValidationTest : public testing::Test {
 protected:
  PagedValidationTest() {
    params.config = {.heads = {.data_type = DataType::kBFloat16,
                               .head_dim_qk = 64,
                               .head_dim_v = 32,
                               .query_head_count = 4,
                               .kv_head_count = 2,
                               .mask = MaskKind::kCausalBottomRight},
                     .kv_data_type = KvDataType::kFloat8E4M3,
                     .page_tokens = 2};
    params.sequences = sequences;
    params.sequence_count = 2;
    params.copies = &copy;
    params.copy_count = 1;
    for (PagedSequence& s : sequences) {
      s.query = s.new_key = s.new_value = memory;
      s.output = memory;
      s.query_length = s.append_length = 1;
      s.key_length = s.key_end = 5;
      s.pages = pages;
      s.key_scales = s.value_scales = scales;
    }
  }

  void ExpectInvalid(const std::vector<std::string>& parts) {
    const absl::Status status = ValidatePagedParams(params);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    for (const std::string& part : parts) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(part));
    }
  }

  // Of the second sequence.
  void ExpectInvalid(const std::function<void(PagedSequence&)>& breakage,
                     const std::vector<std::string>& parts) {
    const PagedSequence good = sequences[1];
    breakage(sequences[1]);
    ExpectInvalid(parts);
    sequences[1] = good;
    EXPECT_TRUE(ValidatePagedParams(params).ok());
  }

  char memory[16] = {};
  void* pages[3] = {memory, memory, memory};
  float scales[2] = {0.5f, 2.0f};
  PageCopy copy = {memory, memory};
  PagedSequence sequences[2];
  PagedParams params;
};

TEST_F(PagedValidationTest, AcceptsWhatThereMayBe) {
  EXPECT_TRUE(ValidatePagedParams(params).ok());
  sequences[0] = {};
  sequences[0].key_scales = sequences[0].value_scales = scales;
  EXPECT_TRUE(ValidatePagedParams(params).ok()) << "nothing at all";
  sequences[0].query_length = 3;
  sequences[0].query = sequences[0].output = memory;
  EXPECT_TRUE(ValidatePagedParams(params).ok()) << "no keys";
  params.config.kv_data_type = KvDataType::kSame;
  sequences[1].key_scales = sequences[1].value_scales = nullptr;
  EXPECT_TRUE(ValidatePagedParams(params).ok()) << "no scales";
  params.sequence_count = params.copy_count = 0;
  EXPECT_TRUE(ValidatePagedParams(params).ok()) << "an empty batch";
}

TEST_F(PagedValidationTest, RefusesConfigs) {
  const PagedConfig good = params.config;
  params.config.heads.head_dim_v = 0;
  ExpectInvalid({"head_dim_v", "[1, 256]", "got 0"});
  params.config = good;
  params.config.heads.algorithm = Algorithm::kThreeStep;
  ExpectInvalid({"streaming"});
  params.config = good;
  params.config.heads.data_type = DataType::kFloat8E4M3;
  ExpectInvalid({"data_type fp8", "kv_data_type"});
  params.config = good;
  params.config.kv_data_type = static_cast<KvDataType>(2);
  ExpectInvalid({"kv_data_type", "got 2"});
  params.config.kv_data_type = KvDataType::kSame;
  params.config.split_policy = static_cast<SplitPolicy>(2);
  ExpectInvalid({"split_policy", "got 2"});
  params.config.split_policy = SplitPolicy::kBalanced;
  for (int32_t page_tokens : {0, kMaxPageTokens + 1}) {
    params.config = good;
    params.config.page_tokens = page_tokens;
    ExpectInvalid({"page_tokens", "[1, 65536]", std::to_string(page_tokens)});
  }
}

TEST_F(PagedValidationTest, RefusesNumbers) {
  using S = PagedSequence;
  ExpectInvalid([](S& s) { s.query_length = -1; }, {"query_length", "got -1"});
  ExpectInvalid([](S& s) { s.key_length = -1; }, {"key_length", "got -1"});
  ExpectInvalid([](S& s) { s.append_length = -1; },
                {"sequence 1: ", "append_length", "[0, 5]", "got -1"});
  ExpectInvalid([](S& s) { s.append_length = 6; },
                {"append_length", "[0, 5]", "got 6"});
  ExpectInvalid([](S& s) { s.key_end = 6; }, {"key_end", "[0, 5]", "got 6"});
  ExpectInvalid([](S& s) { s.key_end = -1; }, {"key_end", "[0, 5]", "got -1"});
  ExpectInvalid(
      [](S& s) {
        s.key_begin = 4;
        s.key_end = 3;
      },
      {"key_begin", "[0, 3]", "got 4"});
  ExpectInvalid([](S& s) { s.key_begin = -1; }, {"key_begin", "got -1"});
  ExpectInvalid([](S& s) { s.sink_tokens = -2; }, {"sink_tokens", "got -2"});
  ExpectInvalid([](S& s) { s.window_left = -2; }, {"window_left", "got -2"});
  ExpectInvalid([](S& s) { s.scale = std::numeric_limits<double>::infinity(); },
                {"scale", "finite"});
  params.copy_count = -1;
  ExpectInvalid({"copy_count", "must not be negative", "-1"});
}

TEST_F(PagedValidationTest, RefusesScales) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (float bad : {0.0f, -1.0f, nan, std::numeric_limits<float>::infinity()}) {
    const float bad_scales[2] = {1.0f, bad};
    ExpectInvalid([&](PagedSequence& s) { s.key_scales = bad_scales; },
                  {"sequence 1: ", "key_scales[1]", "more than 0"});
    ExpectInvalid([&](PagedSequence& s) { s.value_scales = bad_scales; },
                  {"value_scales[1]"});
  }
  ExpectInvalid([](PagedSequence& s) { s.key_scales = nullptr; },
                {"key_scales", "must not be null"});
  ExpectInvalid([](PagedSequence& s) { s.value_scales = nullptr; },
                {"value_scales", "must not be null"});
}

TEST_F(PagedValidationTest, RefusesNullPointers) {
  using S = PagedSequence;
  ExpectInvalid([](S& s) { s.query = nullptr; }, {"query", "null"});
  ExpectInvalid([](S& s) { s.output = nullptr; }, {"output", "null"});
  ExpectInvalid([](S& s) { s.new_key = nullptr; }, {"new_key", "null"});
  ExpectInvalid([](S& s) { s.new_value = nullptr; }, {"new_value", "null"});
  ExpectInvalid([](S& s) { s.pages = nullptr; }, {"pages", "null"});
  copy.from = nullptr;
  ExpectInvalid({"copy 0: ", "null"});
}

TEST_F(PagedValidationTest, PagesMayBeNullWhereNothingIsSeenOrWritten) {
  void* holes[3] = {memory, memory, memory};
  sequences[1].pages = holes;
  for (int page : {0, 1, 2}) {
    holes[page] = nullptr;
    ExpectInvalid({"sequence 1: ", "pages[" + std::to_string(page) + "]"});
    holes[page] = memory;
  }
  sequences[1].window_left = 1;  // keys 3 and 4
  holes[0] = nullptr;
  EXPECT_TRUE(ValidatePagedParams(params).ok());
  sequences[1].sink_tokens = 1;
  ExpectInvalid({"pages[0]"});
  sequences[1].key_begin = 2;
  EXPECT_TRUE(ValidatePagedParams(params).ok());
  sequences[1].query_length = 0;
  sequences[1].append_length = 1;
  holes[1] = nullptr;
  EXPECT_TRUE(ValidatePagedParams(params).ok());
  sequences[1].append_length = 2;  // from token 3 on
  ExpectInvalid({"pages[1]"});
}

TEST(OutputTypeTest, IsTheInputsButForFloat8) {
  for (DataType type :
       {DataType::kFloat32, DataType::kFloat16, DataType::kBFloat16}) {
    EXPECT_EQ(OutputType(type), type);
  }
  EXPECT_EQ(OutputType(DataType::kFloat8E4M3), DataType::kBFloat16);
}

TEST(ToStringTest, Pages) {
  PagedConfig config = {.heads = {.data_type = DataType::kBFloat16,
                                  .head_dim_qk = 128,
                                  .head_dim_v = 128,
                                  .query_head_count = 16,
                                  .kv_head_count = 8},
                        .page_tokens = 16};
  EXPECT_EQ(ToString(config), "bf16 q16 kv8 d128 page16");
  config.kv_data_type = KvDataType::kFloat8E4M3;
  EXPECT_EQ(ToString(config), "bf16 q16 kv8 d128 e4m3 page16");
}

TEST(ToStringTest, NamesWhatDiffersFromTheDefault) {
  HeadConfig config{.data_type = DataType::kBFloat16,
                    .head_dim_qk = 128,
                    .head_dim_v = 128,
                    .query_head_count = 16,
                    .kv_head_count = 8};
  EXPECT_EQ(ToString(config), "bf16 q16 kv8 d128");
  config.data_type = DataType::kFloat32;
  config.head_dim_v = 64;
  config.mask = MaskKind::kCausalTopLeft;
  config.precision = Precision::kTf32;
  config.algorithm = Algorithm::kThreeStep;
  EXPECT_EQ(ToString(config),
            "fp32 q16 kv8 d128/64 causal_top_left tf32 three_step");
}

}  // namespace
}  // namespace attention
