#include "server/rpc/request_decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>

#include "server/engine/error_reason.h"
#include "tests/server/rpc/decode.h"
#include "tests/server/rpc/request_maker.h"

namespace attention::test {
namespace {

using Request = v1::ComputeAttentionRequest;
using ::testing::AllOf;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

// A valid request: B 2, M 5, N 7, 4 query heads on 2 K/V heads, d 8, fp32.
Request Valid(v1::Layout layout = v1::LAYOUT_BSHD) {
  std::mt19937_64 random(1);
  RequestSpec spec;
  spec.layout = layout;
  spec.batch = 2;
  if (layout == v1::LAYOUT_THD) {
    spec.query_lengths = {2, 3};
    spec.key_lengths = {0, 7};
  }
  return RequestMaker(spec, random).request();
}

// Row-major, so that a test can change one stride.
void SetStrides(const v1::TensorDescriptor& like, v1::TensorDescriptor* target) {
  target->clear_strides();
  for (int i = 0; i < like.shape_size(); ++i) {
    int64_t stride = 1;
    for (int j = i + 1; j < like.shape_size(); ++j) stride *= like.shape(j);
    target->add_strides(stride);
  }
}

struct Rule {
  std::string name;
  std::function<void(Request&)> break_it;
  std::string field;  // what the message must name
  std::string value;  // the value it must show
  v1::Layout layout = v1::LAYOUT_BSHD;
  std::string_view reason = error_reason::kInvalidRequest;
};

void PrintTo(const Rule& rule, std::ostream* os) { *os << rule.name; }

class DecoderRuleTest : public ::testing::TestWithParam<Rule> {};

TEST_P(DecoderRuleTest, IsRefusedWithFieldAndValue) {
  const Rule& rule = GetParam();
  Request request = Valid(rule.layout);
  ASSERT_TRUE(DecodeStatus(request).ok()) << DecodeStatus(request);
  rule.break_it(request);
  const absl::Status status = DecodeStatus(request);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(ReasonOf(status), rule.reason);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(rule.field), HasSubstr("must be"),
                    HasSubstr("got " + rule.value)));
}

#define RULE(name, field, value, ...) \
  Rule { name, [](Request& r) { __VA_ARGS__; }, field, value }
#define THD_RULE(name, field, value, ...) \
  Rule { name, [](Request& r) { __VA_ARGS__; }, field, value, v1::LAYOUT_THD }
#define UNSUPPORTED_RULE(name, field, value, ...)             \
  Rule {                                                      \
    name, [](Request& r) { __VA_ARGS__; }, field, value,      \
        v1::LAYOUT_BSHD, error_reason::kUnsupported           \
  }

INSTANTIATE_TEST_SUITE_P(
    Options, DecoderRuleTest,
    ::testing::Values(
        RULE("NoDataType", "data_type", "DATA_TYPE_UNSPECIFIED",
             r.clear_data_type()),
        UNSUPPORTED_RULE("DataType", "data_type", "5",
                         r.set_data_type(static_cast<v1::DataType>(5))),
        UNSUPPORTED_RULE("NegativeDataType", "data_type", "-1",
                         r.set_data_type(static_cast<v1::DataType>(-1))),
        UNSUPPORTED_RULE("Layout", "layout", "77",
                         r.set_layout(static_cast<v1::Layout>(77))),
        UNSUPPORTED_RULE("Mask", "mask_type", "4",
                         r.set_mask_type(static_cast<v1::MaskType>(4))),
        UNSUPPORTED_RULE("Precision", "precision", "3",
                         r.set_precision(static_cast<v1::Precision>(3))),
        UNSUPPORTED_RULE("Algorithm", "algorithm", "3",
                         r.set_algorithm(static_cast<v1::Algorithm>(3))),
        UNSUPPORTED_RULE("WeightsNeedThreeStep", "algorithm", "1",
                         r.set_return_weights(true);
                         r.set_algorithm(v1::ALGORITHM_STREAMING)),
        UNSUPPORTED_RULE("ThreeStepFloat8", "algorithm", "2",
                         r.set_data_type(v1::DATA_TYPE_FLOAT8_E4M3);
                         r.set_algorithm(v1::ALGORITHM_THREE_STEP)),
        UNSUPPORTED_RULE("WeightsOfFloat8", "return_weights", "true",
                         r.set_data_type(v1::DATA_TYPE_FLOAT8_E4M3);
                         r.set_return_weights(true)),
        RULE("NanScale", "scale", "nan", r.set_scale(NAN)),
        RULE("InfiniteScale", "scale", "inf", r.set_scale(INFINITY)),
        RULE("NegativeInfiniteScale", "scale", "-inf", r.set_scale(-INFINITY)),
        RULE("WindowLeft", "sliding_window.left", "-1",
             r.mutable_sliding_window()->set_left(-1)),
        RULE("WindowRight", "sliding_window.right", "-9223372036854775808",
             r.mutable_sliding_window()->set_right(-kMax - 1)),
        RULE("PriorityTooHigh", "priority", "101", r.set_priority(101)),
        RULE("PriorityTooLow", "priority", "-101", r.set_priority(-101))),
    [](const auto& info) { return info.param.name; });

// 4 query heads, 2 K/V heads; payloads of 8 bits.
Request ValidFloat8() {
  std::mt19937_64 random(1);
  return RequestMaker({.data_type = DataType::kFloat8E4M3, .has_scales = true},
                      random)
      .request();
}

#define SCALES_RULE(name, field, value, ...) \
  Rule {                                     \
    name,                                    \
        [](Request& r) {                     \
          r = ValidFloat8();                 \
          __VA_ARGS__;                       \
        },                                   \
        field, value                         \
  }

INSTANTIATE_TEST_SUITE_P(
    Scales, DecoderRuleTest,
    ::testing::Values(
        SCALES_RULE("TooFew", "the size of query_scales", "3",
                    r.mutable_query_scales()->RemoveLast()),
        SCALES_RULE("TooMany", "the size of key_scales", "3",
                    r.add_key_scales(1)),
        SCALES_RULE("AsManyAsQueryHeads", "the size of value_scales", "4",
                    *r.mutable_value_scales() = r.query_scales()),
        SCALES_RULE("Nan", "query_scales[3]", "nan",
                    r.set_query_scales(3, NAN)),
        SCALES_RULE("Infinite", "key_scales[0]", "inf",
                    r.set_key_scales(0, INFINITY)),
        SCALES_RULE("Zero", "value_scales[1]", "0", r.set_value_scales(1, 0)),
        SCALES_RULE("NegativeZero", "value_scales[0]", "-0",
                    r.set_value_scales(0, -0.0f)),
        SCALES_RULE("Negative", "key_scales[1]", "-0.5",
                    r.set_key_scales(1, -0.5f)),
        RULE("QueryWithFloat32", "query_scales", "1 numbers",
             r.add_query_scales(1)),
        RULE("KeyWithFloat32", "key_scales", "2 numbers",
             for (int i = 0; i < 2; ++i) r.add_key_scales(1)),
        RULE("ValueWithFloat32", "value_scales", "1 numbers",
             r.add_value_scales(NAN))),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Shapes, DecoderRuleTest,
    ::testing::Values(
        RULE("NoQueryDescriptor", "query_descriptor.shape", "0",
             r.clear_query_descriptor()),
        RULE("TooFewDimensions", "key_descriptor.shape", "3",
             r.mutable_key_descriptor()->mutable_shape()->RemoveLast()),
        RULE("TooManyDimensions", "value_descriptor.shape", "5",
             r.mutable_value_descriptor()->add_shape(1)),
        RULE("FourDimensionsInThd", "query_descriptor.shape", "4",
             r.set_layout(v1::LAYOUT_THD)),
        RULE("NegativeDimension", "query_descriptor.shape[1]", "-5",
             r.mutable_query_descriptor()->set_shape(1, -5)),
        RULE("NegativeHeadDimension", "query_descriptor.shape[3]", "-8",
             r.mutable_query_descriptor()->set_shape(3, -8)),
        RULE("HeadDimensionZero", "query_descriptor.shape[3]", "0",
             r.mutable_query_descriptor()->set_shape(3, 0)),
        UNSUPPORTED_RULE("HeadDimension257", "value_descriptor.shape[3]", "257",
                         r.mutable_value_descriptor()->set_shape(3, 257)),
        RULE("ShapeOverflows", "query (its size in bytes)", "1280",
             for (int i = 0; i < 3; ++i)
                 r.mutable_query_descriptor()->set_shape(i, kMax)),
        RULE("ShapeProductWraps", "query (its size in bytes)", "1280",
             // 2^62 * 2^62 * 4 * 8 is 0 modulo 2^64.
             for (int i = 0; i < 2; ++i)
                 r.mutable_query_descriptor()->set_shape(i, int64_t{1} << 62)),
        RULE("Batch", "the batch size of key_descriptor.shape", "1",
             r.mutable_key_descriptor()->set_shape(0, 1);
             r.mutable_key()->resize(r.key().size() / 2)),
        RULE("ValueBatch", "the batch size of value_descriptor.shape", "1",
             r.mutable_value_descriptor()->set_shape(0, 1);
             r.mutable_value()->resize(r.value().size() / 2)),
        RULE("Tokens", "the token count of value_descriptor.shape", "8",
             r.mutable_value_descriptor()->set_shape(1, 8);
             r.mutable_value()->resize(r.value().size() / 7 * 8)),
        RULE("KvHeads", "the head count of value_descriptor.shape", "1",
             r.mutable_value_descriptor()->set_shape(2, 1);
             r.mutable_value()->resize(r.value().size() / 2)),
        RULE("QueryHeads", "the head count of query_descriptor.shape", "3",
             r.mutable_query_descriptor()->set_shape(2, 3);
             r.mutable_query()->resize(r.query().size() / 4 * 3)),
        RULE("QueryHeadsWithoutKvHeads",
             "the head count of query_descriptor.shape", "4",
             r.mutable_key_descriptor()->set_shape(2, 0); r.clear_key();
             r.mutable_value_descriptor()->set_shape(2, 0); r.clear_value()),
        RULE("HeadDimensionsDiffer", "the head dimension of key_descriptor.shape",
             "4", r.mutable_key_descriptor()->set_shape(3, 4);
             r.mutable_key()->resize(r.key().size() / 2)),
        UNSUPPORTED_RULE("TooManyTokens",
                         "the token count of key_descriptor.shape", "2147483648",
                         for (auto* d : {r.mutable_key_descriptor(),
                                         r.mutable_value_descriptor()}) {
                           d->set_shape(1, int64_t{1} << 31);
                           for (int i = 0; i < 4; ++i) d->add_strides(0);
                         }),
        UNSUPPORTED_RULE("TooManyHeads", "head counts", "2147483648",
                         for (auto* d : {r.mutable_key_descriptor(),
                                         r.mutable_value_descriptor()}) {
                           d->set_shape(2, int64_t{1} << 31);
                           for (int i = 0; i < 4; ++i) d->add_strides(0);
                         })),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Payloads, DecoderRuleTest,
    ::testing::Values(
        RULE("Missing", "query (its size in bytes)", "0", r.clear_query()),
        RULE("Short", "key (its size in bytes)", "895", r.mutable_key()->pop_back()),
        RULE("Long", "value (its size in bytes)", "897",
             r.mutable_value()->push_back('x')),
        RULE("ShortInARegion", "key_reference.byte_size", "895",
             r.mutable_key()->pop_back();
             r.mutable_key_reference()->set_region_name("r")),
        RULE("SizeOfAnotherType", "query (its size in bytes)", "1280",
             r.set_data_type(v1::DATA_TYPE_FLOAT16)),
        RULE("StrideCount", "query_descriptor.strides", "3",
             for (int i = 0; i < 3; ++i)
                 r.mutable_query_descriptor()->add_strides(0)),
        RULE("NegativeStride", "query_descriptor.strides[2]", "-8",
             SetStrides(r.query_descriptor(), r.mutable_query_descriptor());
             r.mutable_query_descriptor()->set_strides(2, -8)),
        RULE("StrideReachesOut", "key (its size in bytes)", "896",
             SetStrides(r.key_descriptor(), r.mutable_key_descriptor());
             r.mutable_key_descriptor()->set_strides(3, 2)),
        RULE("StrideReachesOutByOne", "key (its size in bytes)", "892",
             SetStrides(r.key_descriptor(), r.mutable_key_descriptor());
             r.mutable_key()->resize(r.key().size() - 4)),
        RULE("StrideOverflows", "key (its size in bytes)", "896",
             SetStrides(r.key_descriptor(), r.mutable_key_descriptor());
             r.mutable_key_descriptor()->set_strides(1, kMax)),
        RULE("StrideWraps", "key (its size in bytes)", "896",
             // 6 * 3074457345618258603 is 2 modulo 2^64.
             SetStrides(r.key_descriptor(), r.mutable_key_descriptor());
             r.mutable_key_descriptor()->set_strides(
                 1, 3074457345618258603)),
        RULE("SumOfStridesOverflows", "key (its size in bytes)", "896",
             SetStrides(r.key_descriptor(), r.mutable_key_descriptor());
             for (int i = 0; i < 4; ++i)
                 r.mutable_key_descriptor()->set_strides(i, kMax / 7))),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Lengths, DecoderRuleTest,
    ::testing::Values(
        RULE("Count", "the size of query_lengths", "1", r.add_query_lengths(1)),
        RULE("KeyCount", "the size of key_lengths", "3",
             for (int i = 0; i < 3; ++i) r.add_key_lengths(1)),
        RULE("BeyondTheShape", "query_lengths[1]", "6", r.add_query_lengths(5);
             r.add_query_lengths(6)),
        RULE("Negative", "key_lengths[0]", "-1", r.add_key_lengths(-1);
             r.add_key_lengths(1)),
        THD_RULE("RaggedWithout", "the sum of query_lengths", "0",
                 r.clear_query_lengths(); r.clear_key_lengths()),
        THD_RULE("RaggedCounts", "the size of key_lengths", "3",
                 r.add_key_lengths(0)),
        THD_RULE("RaggedSum", "the sum of query_lengths", "4",
                 r.set_query_lengths(0, 1)),
        THD_RULE("RaggedKeySum", "the sum of key_lengths", "6",
                 r.set_key_lengths(1, 6)),
        THD_RULE("RaggedNegative", "query_lengths[0]", "-2",
                 r.set_query_lengths(0, -2)),
        THD_RULE("RaggedOverflow", "query_lengths[1]", "9223372036854775807",
                 r.set_query_lengths(1, kMax))),
    [](const auto& info) { return info.param.name; });

void ExpectTooLarge(const Request& request, const RequestLimits& limits,
                    const std::string& what) {
  const absl::Status status = DecodeStatus(request, limits);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(ReasonOf(status), error_reason::kRequestTooLarge);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(what), HasSubstr("must be at most")));
}

TEST(DecoderLimitTest, BoundsTheResponse) {
  const Request request = Valid();
  const int64_t output_bytes = 2 * 5 * 4 * 8 * 4;
  RequestLimits limits;
  limits.max_message_bytes = output_bytes + kResponseMetadataBytes;
  EXPECT_TRUE(DecodeStatus(request, limits).ok());
  --limits.max_message_bytes;
  ExpectTooLarge(request, limits, "the response in bytes");
}

TEST(DecoderLimitTest, CountsLogSumExpAndWeights) {
  Request request = Valid();
  request.set_return_log_sum_exp(true);
  request.set_return_weights(true);
  const int64_t rows = 2 * 5 * 4;
  RequestLimits limits;
  limits.max_message_bytes =
      rows * 8 * 4 + rows * 4 + rows * 7 * 4 + kResponseMetadataBytes;
  EXPECT_TRUE(DecodeStatus(request, limits).ok());
  --limits.max_message_bytes;
  ExpectTooLarge(request, limits, "the response in bytes");
}

// One element of payload that strides of 0 repeat into an absurd answer.
TEST(DecoderLimitTest, BoundsAnswersOfExpandedTensors) {
  for (int64_t size : {int64_t{100'000}, int64_t{2'147'483'647}}) {
    Request request = Valid();
    for (auto* d : {request.mutable_query_descriptor(),
                    request.mutable_key_descriptor(),
                    request.mutable_value_descriptor()}) {
      d->set_shape(1, size);
      for (int i = 0; i < 4; ++i) d->add_strides(0);
    }
    for (bool weights : {false, true}) {
      request.set_return_weights(weights);
      RequestLimits limits;
      limits.max_message_bytes = 1 << 20;
      ExpectTooLarge(request, limits, "the response in bytes");
    }
  }
}

TEST(DecoderLimitTest, BoundsTheComputation) {
  Request request = Valid();
  RequestLimits limits;
  // Of each of two sequences: four heads, 5 queries, 7 keys.
  limits.max_request_flops =
      2.0 * 4 * (5 * 7 * (2 * (8 + 8) + 32) + 7 * 1e3 + 5 * 5e4);
  EXPECT_TRUE(DecodeStatus(request, limits).ok());
  limits.max_request_flops -= 1;
  ExpectTooLarge(request, limits, "the floating point operations");
  // Masked pairs do not count.
  request.set_mask_type(v1::MASK_TYPE_CAUSAL_TOP_LEFT);
  EXPECT_TRUE(DecodeStatus(request, limits).ok());
}

TEST(DecoderLimitTest, BoundsKeysThatAStrideOfZeroRepeats) {
  Request request = Valid();
  for (auto* d : {request.mutable_key_descriptor(),
                  request.mutable_value_descriptor()}) {
    d->set_shape(1, 2'147'483'647);
    for (int i = 0; i < 4; ++i) d->add_strides(0);
  }
  RequestLimits limits;
  limits.max_request_flops = 1e12;
  ExpectTooLarge(request, limits, "the floating point operations");
}

TEST(DecoderLimitTest, BoundsTheSequences) {
  // No payload at all, but a batch that would take the server's memory.
  Request request = Valid();
  for (auto* d : {request.mutable_query_descriptor(),
                  request.mutable_key_descriptor(),
                  request.mutable_value_descriptor()}) {
    d->set_shape(0, kMaxRequestSequences + 1);
    d->set_shape(1, 0);
  }
  request.clear_query();
  request.clear_key();
  request.clear_value();
  ExpectTooLarge(request, {}, "the number of sequences");
  for (auto* d : {request.mutable_query_descriptor(),
                  request.mutable_key_descriptor(),
                  request.mutable_value_descriptor()}) {
    d->set_shape(0, kMaxRequestSequences);
  }
  EXPECT_TRUE(DecodeStatus(request).ok()) << DecodeStatus(request);
}

TEST(DecoderTest, DefaultsWhatIsNotSet) {
  Request request = Valid();
  request.clear_layout();
  const std::string message = request.SerializeAsString();
  const auto decoded = DecodeBytes(message);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  const AttentionWork& work = *decoded->work;
  EXPECT_EQ(work.config.mask, MaskKind::kNone);
  EXPECT_EQ(work.config.precision, Precision::kIeee);
  EXPECT_EQ(work.config.algorithm, Algorithm::kStreaming);
  ASSERT_EQ(work.sequences.size(), 2u);
  EXPECT_DOUBLE_EQ(work.sequences[0].shape.scale, 1 / std::sqrt(8.0));
  EXPECT_EQ(work.sequences[0].shape.window_left, kUnlimitedWindow);
  EXPECT_EQ(work.sequences[0].shape.window_right, kUnlimitedWindow);
  EXPECT_EQ(work.log_sum_exp_bytes, 0u);
  EXPECT_EQ(work.weights_bytes, 0u);
  EXPECT_FALSE(work.has_padding);
}

TEST(DecoderTest, TakesScaleZeroAndNegativeAndWideWindows) {
  Request request = Valid();
  for (double scale : {0.0, -2.5, 1e300}) {
    request.set_scale(scale);
    request.mutable_sliding_window()->set_left(kMax);
    request.mutable_sliding_window()->set_right(0);
    const std::string message = request.SerializeAsString();
    const auto decoded = DecodeBytes(message);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->work->sequences[1].shape.scale, scale);
    EXPECT_EQ(decoded->work->sequences[1].shape.window_left, kMax);
    EXPECT_EQ(decoded->work->sequences[1].shape.window_right, 0);
  }
}

TEST(DecoderTest, TakesPriorities) {
  Request request = Valid();
  for (int priority : {-100, 0, 100}) {
    request.set_priority(priority);
    const std::string message = request.SerializeAsString();
    const auto decoded = DecodeBytes(message);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->work->priority, priority);
  }
}

// Requests that differ only in what their type ignores share a queue.
TEST(DecoderTest, IgnoresThePrecisionOf16BitTypes) {
  std::mt19937_64 random(1);
  RequestSpec spec;
  spec.data_type = DataType::kBFloat16;
  Request request = RequestMaker(spec, random).request();
  request.set_precision(v1::PRECISION_TF32);
  const std::string message = request.SerializeAsString();
  const auto decoded = DecodeBytes(message);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->work->config.precision, Precision::kIeee);
}

TEST(DecoderTest, KeepsScalesAndAnswersFloat8InBFloat16) {
  Request request = ValidFloat8();
  request.clear_key_scales();
  const std::string message = request.SerializeAsString();
  auto decoded = DecodeBytes(message);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  const AttentionWork& work = *decoded->work;
  EXPECT_EQ(work.config.data_type, DataType::kFloat8E4M3);
  EXPECT_THAT(work.scales.query, ElementsAreArray(request.query_scales()));
  EXPECT_THAT(work.scales.key, IsEmpty());
  EXPECT_THAT(work.scales.value, ElementsAreArray(request.value_scales()));
  EXPECT_EQ(decoded->plan.data_type, v1::DATA_TYPE_BFLOAT16);
  EXPECT_EQ(work.query.size_bytes(), 5u * 4 * 8);
  EXPECT_EQ(work.output_bytes, 5u * 4 * 8 * 2);
}

TEST(DecoderTest, PlacesRaggedSequences) {
  const std::string message = Valid(v1::LAYOUT_THD).SerializeAsString();
  const auto decoded = DecodeBytes(message);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  const auto& sequences = decoded->work->sequences;
  ASSERT_EQ(sequences.size(), 2u);
  EXPECT_EQ(sequences[0].shape.query_length, 2);
  EXPECT_EQ(sequences[0].shape.key_length, 0);
  EXPECT_EQ(sequences[1].shape.query_length, 3);
  EXPECT_EQ(sequences[1].query_offset, 2 * 4 * 8);
  EXPECT_EQ(sequences[1].key_offset, 0);
  EXPECT_EQ(sequences[1].output_offset, 2 * 4 * 8);
  EXPECT_EQ(sequences[1].log_sum_exp_offset, 2 * 4);
  EXPECT_FALSE(decoded->work->has_padding);
}

TEST(DecoderTest, MarksPadding) {
  Request request = Valid();
  request.add_query_lengths(5);
  request.add_query_lengths(3);
  const std::string padded = request.SerializeAsString();
  auto decoded = DecodeBytes(padded);
  ASSERT_TRUE(decoded.ok());
  EXPECT_TRUE(decoded->work->has_padding);

  // Short keys leave a gap in the weights only.
  request.clear_query_lengths();
  request.add_key_lengths(7);
  request.add_key_lengths(2);
  const std::string short_keys = request.SerializeAsString();
  decoded = DecodeBytes(short_keys);
  ASSERT_TRUE(decoded.ok());
  EXPECT_FALSE(decoded->work->has_padding);
  request.set_return_weights(true);
  const std::string with_weights = request.SerializeAsString();
  decoded = DecodeBytes(with_weights);
  ASSERT_TRUE(decoded.ok());
  EXPECT_TRUE(decoded->work->has_padding);
  EXPECT_EQ(decoded->plan.padded_lengths.size(), 2u);
}

// Dimensions of 0 are legal, whatever the sizes and strides beside them.
TEST(DecoderTest, TakesEmptyTensorsWithAbsurdStrides) {
  Request request = Valid();
  request.mutable_query_descriptor()->set_shape(1, 0);
  request.clear_query();
  for (int i = 0; i < 4; ++i) {
    request.mutable_query_descriptor()->add_strides(kMax);
  }
  const std::string message = request.SerializeAsString();
  const auto decoded = DecodeBytes(message);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->work->result_bytes(), 0u);
  EXPECT_TRUE(decoded->work->sequences.empty());
}

}  // namespace
}  // namespace attention::test
