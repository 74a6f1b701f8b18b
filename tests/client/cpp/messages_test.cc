#include "client/cpp/messages.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/cpp/request_serializer.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "google/protobuf/wrappers.pb.h"
#include "gtest/gtest.h"

namespace attention {
namespace {

using ::google::protobuf::util::MessageDifferencer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

AttentionRequest MakeRequest(absl::string_view q, absl::string_view k,
                             absl::string_view v) {
  AttentionRequest request;
  request.data_type = DataType::kBFloat16;
  request.query = {q.data(), q.size(), {1, 2, 1, 3}, {}};
  request.key = {k.data(), k.size(), {1, 4, 1, 3}, {12, 3, 3, 1}};
  request.value = {v.data(), v.size(), {1, 4, 1, 2}, {}};
  return request;
}

v1::ComputeAttentionRequest OverTheWire(const AttentionRequest& request) {
  absl::StatusOr<grpc::ByteBuffer> bytes =
      SerializeRequest(request, RegionTable(), *RequestMemory::Create(0));
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  v1::ComputeAttentionRequest proto;
  EXPECT_EQ(Parse(*bytes, &proto), absl::OkStatus());
  return proto;
}

TEST(ToProtoTest, CarriesEveryField) {
  AttentionRequest request = MakeRequest("qqqq", "kk", "v");
  request.layout = Layout::kThd;
  request.query_lengths = {1, 1};
  request.key_lengths = {3, 1};
  request.scale = 0.0;
  request.query_scales = {0.5f, 2};
  request.key_scales = {3};
  request.value_scales = {4};
  request.mask = MaskKind::kCausalTopLeft;
  request.window_left = 5;
  request.window_right = 0;
  request.precision = Precision::kTf32;
  request.algorithm = Algorithm::kThreeStep;
  request.return_log_sum_exp = true;
  request.return_weights = true;
  const v1::ComputeAttentionRequest proto = ToProto(request);
  EXPECT_EQ(proto.data_type(), v1::DATA_TYPE_BFLOAT16);
  EXPECT_EQ(proto.layout(), v1::LAYOUT_THD);
  EXPECT_THAT(proto.query_descriptor().shape(), ElementsAre(1, 2, 1, 3));
  EXPECT_THAT(proto.key_descriptor().strides(), ElementsAre(12, 3, 3, 1));
  EXPECT_THAT(proto.value_descriptor().shape(), ElementsAre(1, 4, 1, 2));
  EXPECT_THAT(proto.query_lengths(), ElementsAre(1, 1));
  EXPECT_THAT(proto.key_lengths(), ElementsAre(3, 1));
  EXPECT_TRUE(proto.has_scale());
  EXPECT_EQ(proto.scale(), 0.0);
  EXPECT_THAT(proto.query_scales(), ElementsAre(0.5f, 2));
  EXPECT_THAT(proto.key_scales(), ElementsAre(3));
  EXPECT_THAT(proto.value_scales(), ElementsAre(4));
  EXPECT_EQ(proto.mask_type(), v1::MASK_TYPE_CAUSAL_TOP_LEFT);
  EXPECT_EQ(proto.sliding_window().left(), 5);
  EXPECT_TRUE(proto.sliding_window().has_right());
  EXPECT_EQ(proto.sliding_window().right(), 0);
  EXPECT_EQ(proto.precision(), v1::PRECISION_TF32);
  EXPECT_EQ(proto.algorithm(), v1::ALGORITHM_THREE_STEP);
  EXPECT_TRUE(proto.return_log_sum_exp());
  EXPECT_TRUE(proto.return_weights());
  EXPECT_EQ(proto.query(), "qqqq");
  EXPECT_EQ(proto.key(), "kk");
  EXPECT_EQ(proto.value(), "v");
}

TEST(ToProtoTest, LeavesDefaultsToTheServer) {
  const v1::ComputeAttentionRequest proto = ToProto(MakeRequest("q", "k", "v"));
  EXPECT_FALSE(proto.has_scale());
  EXPECT_FALSE(proto.has_sliding_window());
  EXPECT_EQ(proto.algorithm(), v1::ALGORITHM_UNSPECIFIED);
  EXPECT_EQ(proto.mask_type(), v1::MASK_TYPE_NONE);
}

TEST(AnswerBytesTest, CountsResultsInTheirOwnType) {
  AttentionRequest request = MakeRequest("q", "k", "v");
  const std::pair<DataType, size_t> sizes[] = {{DataType::kFloat32, 4},
                                               {DataType::kFloat16, 2},
                                               {DataType::kBFloat16, 2},
                                               {DataType::kFloat8E4M3, 2}};
  for (const auto& [type, element_bytes] : sizes) {
    request.data_type = type;
    EXPECT_EQ(AnswerBytes(request), 2 * 2 * element_bytes);
  }
}

TEST(SerializeRequestTest, EqualsTheMessage) {
  // Lengths on both sides of the borders of varints.
  for (const size_t size : {0, 1, 127, 128, 16383, 16384, 3000000}) {
    const std::string q(size, 'q'), k(size / 2, 'k'), v(size + 1, 'v');
    const AttentionRequest request = MakeRequest(q, k, v);
    EXPECT_TRUE(
        MessageDifferencer::Equals(OverTheWire(request), ToProto(request)))
        << size;
  }
}

TEST(SerializeRequestTest, RefusesMoreThanTwoGibibytesWithoutReadingThem) {
  const char small[1] = {};
  const size_t huge_sizes[][3] = {{size_t{1} << 31, 0, 0},
                                  {size_t{1} << 30, size_t{1} << 30, 0},
                                  {size_t{1} << 31, size_t{1} << 31, 0},
                                  {0, 0, ~size_t{0}}};
  for (const auto& sizes : huge_sizes) {
    AttentionRequest request;
    request.query = {small, sizes[0], {1}, {}};
    request.key = {small, sizes[1], {1}, {}};
    request.value = {small, sizes[2], {1}, {}};
    const absl::Status status =
        SerializeRequest(request, RegionTable(), *RequestMemory::Create(0)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("at most 2147483647 bytes"));
  }
}

v1::ComputeAttentionResponse MakeResponse() {
  v1::ComputeAttentionResponse response;
  response.set_data_type(v1::DATA_TYPE_FLOAT16);
  response.mutable_output_descriptor()->add_shape(2);
  response.mutable_output_descriptor()->add_shape(1);
  response.set_output("abcd");
  return response;
}

TEST(FromProtoTest, MovesEverything) {
  v1::ComputeAttentionResponse response = MakeResponse();
  response.mutable_log_sum_exp_descriptor()->add_shape(2);
  response.set_log_sum_exp("12345678");
  response.mutable_weights_descriptor()->add_shape(3);
  response.set_weights("uvwxyz");
  response.mutable_timings()->set_batch_request_count(7);
  const auto result = FromProto(response);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->data_type, DataType::kFloat16);
  EXPECT_THAT(result->output_shape, ElementsAre(2, 1));
  EXPECT_EQ(result->output, "abcd");
  EXPECT_THAT(result->log_sum_exp_shape, ElementsAre(2));
  EXPECT_EQ(result->log_sum_exp, "12345678");
  EXPECT_THAT(result->weights_shape, ElementsAre(3));
  EXPECT_EQ(result->weights, "uvwxyz");
  EXPECT_EQ(result->timings.batch_request_count(), 7);
}

TEST(FromProtoTest, RefusesAnswersThatContradictThemselves) {
  const auto code = [](const v1::ComputeAttentionResponse& response) {
    return FromProto(response).status().code();
  };
  EXPECT_EQ(code(MakeResponse()), absl::StatusCode::kOk);
  v1::ComputeAttentionResponse response = MakeResponse();
  response.set_output("abc");
  EXPECT_EQ(code(response), absl::StatusCode::kInternal);
  response = MakeResponse();
  response.mutable_output_descriptor()->set_shape(0, -2);
  EXPECT_EQ(code(response), absl::StatusCode::kInternal);
  response = MakeResponse();
  response.mutable_output_descriptor()->set_shape(0, int64_t{1} << 62);
  response.mutable_output_descriptor()->set_shape(1, 8);
  EXPECT_EQ(code(response), absl::StatusCode::kInternal);
  response = MakeResponse();
  response.mutable_log_sum_exp_descriptor()->add_shape(2);
  response.set_log_sum_exp("1234");
  EXPECT_EQ(code(response), absl::StatusCode::kInternal);
  response = MakeResponse();
  response.clear_data_type();
  EXPECT_EQ(code(response), absl::StatusCode::kInternal);
}

TEST(ParseTest, RefusesBytesThatAreNoMessage) {
  google::protobuf::StringValue value;
  value.set_value("\x07\x07");
  grpc::Slice slice(std::string("\xff\xff\xff"));
  EXPECT_EQ(Parse(grpc::ByteBuffer(&slice, 1), &value).code(),
            absl::StatusCode::kInternal);
  EXPECT_EQ(Parse(Serialize(google::protobuf::StringValue()), &value),
            absl::OkStatus());
}

TEST(TensorViewTest, ContiguousComputesTheSize) {
  float data[6] = {};
  const TensorView view = TensorView::Contiguous(data, {1, 2, 3}, 4);
  EXPECT_EQ(view.size_bytes, 24);
  EXPECT_TRUE(view.strides.empty());
  EXPECT_EQ(TensorView::Contiguous(data, {1, -2, 3}, 4).size_bytes, 0);
  EXPECT_EQ(TensorView::Contiguous(data, {int64_t{1} << 62, 4}, 4).size_bytes,
            0);
}

}  // namespace
}  // namespace attention
