// What streamed calls send, and what they make of answers.
#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "client/cpp/messages.h"
#include "client/cpp/streamed_answer.h"
#include "client/cpp/upload_plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace attention {
namespace {

using ::testing::HasSubstr;

AttentionRequest RequestOf(const std::string& q, const std::string& k,
                           const std::string& v) {
  AttentionRequest request;
  request.query = {.data = q.data(), .size_bytes = q.size()};
  request.key = {.data = k.data(), .size_bytes = k.size()};
  request.value = {.data = v.data(), .size_bytes = v.size()};
  return request;
}

std::string Sequence(size_t size) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 7 % 251);
  return bytes;
}

// Marks what the chunks carry; each byte at most once, and the right one.
void Send(UploadPlan& plan, const std::vector<const std::string*>& tensors,
          std::vector<std::vector<bool>>& sent) {
  while (const auto chunk = plan.Next()) {
    const size_t which = chunk->tensor - v1::TENSOR_QUERY;
    ASSERT_LT(which, 3u);
    ASSERT_GT(chunk->size, 0u);
    const auto at = static_cast<size_t>(chunk->byte_offset);
    ASSERT_EQ(chunk->data, tensors[which]->data() + at);
    for (size_t i = 0; i < chunk->size; ++i) {
      ASSERT_FALSE(sent[which][at + i]);
      sent[which][at + i] = true;
    }
  }
}

TEST(UploadPlanTest, SendsEveryByteOnce) {
  const std::string q = Sequence(10), k = Sequence(5 << 20), v;
  UploadPlan plan(RequestOf(q, k, v));
  std::vector<std::vector<bool>> sent = {std::vector<bool>(q.size()),
                                         std::vector<bool>(k.size()), {}};
  Send(plan, {&q, &k, &v}, sent);
  for (const auto& tensor : sent) {
    EXPECT_EQ(std::count(tensor.begin(), tensor.end(), false), 0);
  }
}

TEST(UploadPlanTest, SkipsWhatTheServerHas) {
  const std::string q = Sequence(10), k = Sequence(5 << 20), v = Sequence(3);
  UploadPlan plan(RequestOf(q, k, v));
  v1::UploadState state;
  const auto add = [](auto* ranges, int64_t offset, int64_t size) {
    v1::ByteRange* range = ranges->Add();
    range->set_byte_offset(offset);
    range->set_byte_size(size);
  };
  add(state.mutable_query_ranges(), 0, 10);
  add(state.mutable_key_ranges(), 5, 2 << 20);
  add(state.mutable_key_ranges(), 3 << 20, 100);
  ASSERT_TRUE(plan.Skip(state).ok());
  EXPECT_EQ(plan.received_bytes(), 10u + (2u << 20) + 100u);
  std::vector<std::vector<bool>> sent = {
      std::vector<bool>(q.size()), std::vector<bool>(k.size()),
      std::vector<bool>(v.size())};
  Send(plan, {&q, &k, &v}, sent);
  EXPECT_EQ(std::count(sent[0].begin(), sent[0].end(), true), 0);
  EXPECT_EQ(std::count(sent[1].begin(), sent[1].end(), true),
            (5 << 20) - (2 << 20) - 100);
  EXPECT_FALSE(sent[1][5]);
  EXPECT_TRUE(sent[1][4]);
  EXPECT_EQ(std::count(sent[2].begin(), sent[2].end(), true), 3);
}

TEST(UploadPlanTest, DoesNotBelieveEverything) {
  const std::string q = Sequence(10), k, v;
  const std::pair<int64_t, int64_t> lies[] = {
      {0, 11}, {11, 0}, {-1, 2}, {2, -1}, {5, INT64_MAX}};
  for (const auto& [offset, size] : lies) {
    UploadPlan plan(RequestOf(q, k, v));
    v1::UploadState state;
    v1::ByteRange* range = state.add_query_ranges();
    range->set_byte_offset(offset);
    range->set_byte_size(size);
    EXPECT_EQ(plan.Skip(state).code(), absl::StatusCode::kInternal);
  }
}

v1::StreamAttentionResponse Head(int64_t elements) {
  v1::StreamAttentionResponse message;
  message.mutable_result()->set_data_type(v1::DATA_TYPE_BFLOAT16);
  message.mutable_result()->mutable_output_descriptor()->add_shape(elements);
  return message;
}

v1::StreamAttentionResponse Chunk(v1::Tensor tensor, int64_t offset,
                                  const std::string& data) {
  v1::StreamAttentionResponse message;
  message.set_tensor(tensor);
  message.set_byte_offset(offset);
  message.set_data(data);
  return message;
}

absl::StatusOr<AttentionResult> Assemble(
    const std::vector<v1::StreamAttentionResponse>& messages,
    const AttentionRequest& request = {}) {
  StreamedAnswer answer({.output = request.output_buffer,
                         .log_sum_exp = request.log_sum_exp_buffer,
                         .weights = request.weights_buffer},
                        RegionResults(request));
  for (const auto& message : messages) {
    auto state = answer.Take(Serialize(message));
    if (!state.ok()) return state.status();
  }
  return std::move(answer).Finish();
}

TEST(StreamedAnswerTest, PutsChunksTogether) {
  v1::StreamAttentionResponse head = Head(3);
  head.set_tensor(v1::TENSOR_OUTPUT);
  head.set_data("ab");
  const auto result = Assemble({head, Chunk(v1::TENSOR_OUTPUT, 2, "c"),
                                Chunk(v1::TENSOR_OUTPUT, 3, ""),
                                Chunk(v1::TENSOR_OUTPUT, 3, "def")});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->output, "abcdef");
  EXPECT_EQ(result->output_shape, std::vector<int64_t>{3});
}

TEST(StreamedAnswerTest, FillsTheCallersBuffer) {
  char buffer[6];
  AttentionRequest request;
  request.output_buffer = {buffer, sizeof(buffer)};
  const auto result = Assemble(
      {Head(3), Chunk(v1::TENSOR_OUTPUT, 0, "abcd"),
       Chunk(v1::TENSOR_OUTPUT, 4, "ef")},
      request);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->output.empty());
  EXPECT_EQ(std::string(buffer, 6), "abcdef");
}

TEST(StreamedAnswerTest, ReportsTheStateOfTheUpload) {
  StreamedAnswer answer({}, {});
  v1::StreamAttentionResponse message;
  message.mutable_upload_state()->add_key_ranges()->set_byte_size(7);
  const auto state = answer.Take(Serialize(message));
  ASSERT_TRUE(state.ok());
  ASSERT_TRUE(state->has_value());
  EXPECT_EQ((*state)->key_ranges(0).byte_size(), 7);
  EXPECT_FALSE((*answer.Take(Serialize(Head(0)))).has_value());
}

TEST(StreamedAnswerTest, DoesNotBelieveEverything) {
  const std::vector<v1::StreamAttentionResponse> answers[] = {
      {},
      {Chunk(v1::TENSOR_OUTPUT, 0, "ab")},
      {Head(1)},
      {Head(1), Chunk(v1::TENSOR_OUTPUT, 0, "abc")},
      {Head(1), Chunk(v1::TENSOR_OUTPUT, 1, "ab")},
      {Head(1), Chunk(v1::TENSOR_OUTPUT, -1, "ab")},
      {Head(2), Chunk(v1::TENSOR_OUTPUT, 0, "ab"),
       Chunk(v1::TENSOR_OUTPUT, 0, "ab")},
      {Head(1), Chunk(v1::TENSOR_QUERY, 0, "ab")},
      {Head(1), Chunk(v1::TENSOR_WEIGHTS, 0, "ab")},
      {Head(-1), Chunk(v1::TENSOR_OUTPUT, 0, "ab")}};
  for (const auto& messages : answers) {
    EXPECT_EQ(Assemble(messages).status().code(), absl::StatusCode::kInternal)
        << messages.size();
  }
  // Cut off anywhere, a message is no message, or lacks something.
  const std::string bytes =
      Chunk(v1::TENSOR_OUTPUT, 0, "abcdef").SerializeAsString();
  for (size_t size = 1; size < bytes.size(); ++size) {
    StreamedAnswer answer({}, {});
    ASSERT_TRUE(answer.Take(Serialize(Head(3))).ok());
    const grpc::Slice slice(bytes.substr(0, size));
    auto taken = answer.Take(grpc::ByteBuffer(&slice, 1));
    EXPECT_FALSE(taken.ok() && std::move(answer).Finish().ok()) << size;
  }
}

}  // namespace
}  // namespace attention
