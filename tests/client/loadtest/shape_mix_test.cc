#include "client/loadtest/shape_mix.h"

#include <cstdio>
#include <fstream>
#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace attention::loadtest {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(const absl::Status& status) {
  return std::string(status.message());
}

TEST(RequestShapeTest, ResolvesDefaultsFromOtherFields) {
  RequestShape shape;
  shape.query_length = 7;
  shape.heads = 6;
  shape.head_dim = 40;
  const auto resolved = shape.Resolve();
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->key_length, 7);
  EXPECT_EQ(resolved->kv_heads, 6);
  EXPECT_EQ(resolved->head_dim_v, 40);
}

TEST(RequestShapeTest, DimsFollowTheLayout) {
  RequestShape shape;
  shape.batch = 2;
  shape.query_length = 3;
  shape.key_length = 5;
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = 8;
  shape.head_dim_v = 16;
  using Dims = std::vector<int64_t>;
  EXPECT_EQ(shape.QueryDims(), Dims({2, 3, 4, 8}));
  EXPECT_EQ(shape.ValueDims(), Dims({2, 5, 2, 16}));
  shape.layout = Layout::kBhsd;
  EXPECT_EQ(shape.KeyDims(), Dims({2, 2, 5, 8}));
  EXPECT_EQ(shape.OutputDims(), Dims({2, 4, 3, 16}));
  shape.layout = Layout::kThd;
  EXPECT_EQ(shape.OutputDims(), Dims({6, 4, 16}));
  EXPECT_EQ(shape.RequestBytes(), 2 * (2 * 3 * 4 * 8 + 2 * 5 * 2 * (8 + 16)));
  // Two products over 3 x 5 pairs, 4 heads, 2 sequences.
  EXPECT_DOUBLE_EQ(shape.Flops(), 2.0 * 2 * 4 * 3 * 5 * (8 + 16));
}

TEST(RequestShapeTest, RefusesNamingFieldValueAndBound) {
  const struct {
    void (*change)(RequestShape&);
    const char* expected;
  } cases[] = {
      {[](RequestShape& s) { s.batch = 0; }, "batch must be in [1, "},
      {[](RequestShape& s) { s.query_length = 0; }, "query_length must be in"},
      {[](RequestShape& s) { s.key_length = -2; }, "key_length must be in [0,"},
      {[](RequestShape& s) { s.head_dim = 257; },
       "head_dim must be in [1, 256]; got 257"},
      {[](RequestShape& s) { s.head_dim_v = 0; },
       "head_dim_v must be in [1, 256]; got 0"},
      {[](RequestShape& s) { s.heads = -3; }, "heads must be in [1, "},
      {[](RequestShape& s) { s.kv_heads = 3; },
       "heads must be a multiple of kv_heads; got 16 and 3"},
      {[](RequestShape& s) { s.window_left = -2; }, "window_left must be"},
      {[](RequestShape& s) { s.query_length = int64_t{1} << 31; },
       "must be under 1 TiB"},
      {[](RequestShape& s) {
         s.batch = s.query_length = s.heads = s.kv_heads = int64_t{1} << 31;
       },
       "must be under 1 TiB"},
  };
  for (const auto& test : cases) {
    RequestShape shape;
    test.change(shape);
    const auto resolved = shape.Resolve();
    EXPECT_EQ(resolved.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(ErrorOf(resolved.status()), HasSubstr(test.expected));
  }
}

TEST(ParseShapeMixTest, ReadsEveryFieldAndDefaultsTheRest) {
  RequestShape defaults;
  defaults.heads = 32;
  defaults.log_sum_exp = true;
  const auto mix = ParseShapeMix(R"({"shapes": [
    {"name": "all", "weight": 2.5, "dtype": "fp32", "batch": 3,
     "query_length": 4, "key_length": 9, "heads": 8, "kv_heads": 2,
     "head_dim": 64, "head_dim_v": 80, "mask": "causal", "window_left": 5,
     "window_right": 0, "layout": "thd", "precision": "tf32",
     "algorithm": "three_step", "lse": false},
    {}]})",
                                 defaults);
  ASSERT_TRUE(mix.ok()) << mix.status();
  ASSERT_EQ(mix->size(), 2u);
  const RequestShape expected = {.name = "all",
                                 .data_type = DataType::kFloat32,
                                 .batch = 3,
                                 .query_length = 4,
                                 .key_length = 9,
                                 .heads = 8,
                                 .kv_heads = 2,
                                 .head_dim = 64,
                                 .head_dim_v = 80,
                                 .mask = MaskKind::kCausalBottomRight,
                                 .window_left = 5,
                                 .window_right = 0,
                                 .layout = Layout::kThd,
                                 .precision = Precision::kTf32,
                                 .algorithm = Algorithm::kThreeStep,
                                 .log_sum_exp = false};
  EXPECT_EQ((*mix)[0].shape, expected);
  EXPECT_EQ((*mix)[0].weight, 2.5);
  EXPECT_EQ((*mix)[1].shape.name, "shape1");
  EXPECT_EQ((*mix)[1].shape.heads, 32);
  EXPECT_EQ((*mix)[1].shape.kv_heads, 32);
  EXPECT_TRUE((*mix)[1].shape.log_sum_exp);
  EXPECT_EQ((*mix)[1].weight, 1);
}

TEST(ParseShapeMixTest, ErrorsNameThePlace) {
  const struct {
    const char* json;
    const char* expected;
  } cases[] = {
      {"", "not valid JSON"},
      {"{\"shapes\": [", "not valid JSON"},
      {"[]", "must be an object with one field, \"shapes\""},
      {R"({"shapes": []})", "at least one shape"},
      {R"({"shapes": [{}], "shape": 1})", "one field"},
      {R"({"shapes": [3]})", "shapes[0] must be an object; got 3"},
      {R"({"shapes": [{}, {"head": 4}]})", "shapes[1].head is no field"},
      {R"({"shapes": [{"heads": "4"}]})",
       "shapes[0].heads must be an integer; got \"4\""},
      {R"({"shapes": [{"heads": 1.5}]})", "must be an integer; got 1.5"},
      {R"({"shapes": [{"heads": 18446744073709551615}]})",
       "must be an integer; got 18446744073709551615"},
      {R"({"shapes": [{"heads": 0}]})", "shapes[0]: heads must be in [1, "},
      {R"({"shapes": [{"lse": 1}]})", "shapes[0].lse must be true or false"},
      {R"({"shapes": [{"dtype": "int8"}]})",
       "shapes[0].dtype must be one of fp32, fp16, bf16, fp8; got \"int8\""},
      {R"({"shapes": [{"mask": "diagonal"}]})",
       "shapes[0].mask must be one of"},
      {R"({"shapes": [{"weight": 0}]})", "shapes[0].weight must be a number"},
      {R"({"shapes": [{"weight": -1}]})", "above 0; got -1"},
      {R"({"shapes": [{"name": "a"}, {"name": "a"}]})",
       "shapes[1].name must be unique; got \"a\" again"},
      {R"({"shapes": [{"name": ""}]})", "a string that is not empty"},
  };
  for (const auto& test : cases) {
    const auto mix = ParseShapeMix(test.json, RequestShape());
    EXPECT_EQ(mix.status().code(), absl::StatusCode::kInvalidArgument)
        << test.json;
    EXPECT_THAT(ErrorOf(mix.status()), HasSubstr(test.expected)) << test.json;
  }
}

TEST(ReadShapeMixTest, NamesTheFile) {
  const auto missing = ReadShapeMix("no/such/file.json", RequestShape());
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(ErrorOf(missing.status()), HasSubstr("no/such/file.json"));

  const std::string path = ::testing::TempDir() + "/bad_mix.json";
  std::ofstream(path) << R"({"shapes": [{"heads": 0}]})";
  const auto bad = ReadShapeMix(path, RequestShape());
  EXPECT_THAT(ErrorOf(bad.status()), HasSubstr(path + ": shapes[0]: heads"));
  std::remove(path.c_str());
}

TEST(ShapePickerTest, DrawsInProportionToWeights) {
  const auto mix = ParseShapeMix(
      R"({"shapes": [{"weight": 1}, {"weight": 6}, {"weight": 3}]})",
      RequestShape());
  ASSERT_TRUE(mix.ok()) << mix.status();
  ShapePicker picker(*mix, 1), same(*mix, 1);
  std::map<size_t, int> counts;
  for (int i = 0; i < 100'000; ++i) {
    const size_t index = picker.Next();
    ASSERT_EQ(index, same.Next());
    ++counts[index];
  }
  EXPECT_NEAR(counts[0], 10'000, 500);
  EXPECT_NEAR(counts[1], 60'000, 800);
  EXPECT_NEAR(counts[2], 30'000, 800);
}

}  // namespace
}  // namespace attention::loadtest
