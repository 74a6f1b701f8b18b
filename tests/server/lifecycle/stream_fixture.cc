#include "tests/server/lifecycle/stream_fixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"

namespace attention::test {

v1::StreamAttentionStart StartOf(const v1::ComputeAttentionRequest& request,
                                 const std::string& upload_id) {
  v1::StreamAttentionStart start;
  *start.mutable_request() = request;
  start.mutable_request()->clear_query();
  start.mutable_request()->clear_key();
  start.mutable_request()->clear_value();
  start.set_query_byte_size(static_cast<int64_t>(request.query().size()));
  start.set_key_byte_size(static_cast<int64_t>(request.key().size()));
  start.set_value_byte_size(static_cast<int64_t>(request.value().size()));
  start.set_upload_id(upload_id);
  return start;
}

v1::StreamAttentionRequest Chunk(v1::Tensor tensor, int64_t byte_offset,
                                 const std::string& data) {
  v1::StreamAttentionRequest chunk;
  chunk.set_tensor(tensor);
  chunk.set_byte_offset(byte_offset);
  chunk.set_data(data);
  return chunk;
}

std::vector<v1::StreamAttentionRequest> ChunksOf(
    const v1::ComputeAttentionRequest& request, size_t chunk_bytes) {
  std::vector<v1::StreamAttentionRequest> chunks;
  const std::pair<v1::Tensor, const std::string&> tensors[] = {
      {v1::TENSOR_QUERY, request.query()},
      {v1::TENSOR_KEY, request.key()},
      {v1::TENSOR_VALUE, request.value()}};
  for (const auto& [tensor, bytes] : tensors) {
    for (size_t at = 0; at < bytes.size(); at += chunk_bytes) {
      chunks.push_back(Chunk(tensor, static_cast<int64_t>(at),
                             bytes.substr(at, chunk_bytes)));
    }
  }
  return chunks;
}

StreamCaller::StreamCaller(
    std::shared_ptr<grpc::Channel> channel,
    const std::function<void(grpc::ClientContext&)>& prepare)
    : stub_(v1::AttentionService::NewStub(std::move(channel))) {
  context_.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
  if (prepare) prepare(context_);
  stream_ = stub_->StreamAttention(&context_);
}

StreamCaller::~StreamCaller() {
  if (finished_) return;
  Cancel();
  stream_->Finish();
}

bool StreamCaller::Start(const v1::StreamAttentionStart& start) {
  v1::StreamAttentionRequest message;
  *message.mutable_start() = start;
  return Send(message);
}

bool StreamCaller::Send(const v1::StreamAttentionRequest& message) {
  return stream_->Write(message);
}

v1::UploadState StreamCaller::ReadState() {
  v1::StreamAttentionResponse message;
  if (!stream_->Read(&message)) return {};
  EXPECT_TRUE(message.has_upload_state());
  EXPECT_FALSE(message.has_result());
  return message.upload_state();
}

Outcome StreamCaller::Finish() {
  Outcome outcome;
  v1::StreamAttentionResponse message;
  bool has_result = false;
  int last_tensor = 0;
  while (stream_->Read(&message)) {
    if (message.has_result()) {
      EXPECT_FALSE(has_result);
      has_result = true;
      outcome.response = message.result();
    }
    if (message.data().empty()) continue;
    EXPECT_TRUE(has_result);
    EXPECT_GE(message.tensor(), last_tensor);
    last_tensor = message.tensor();
    std::string* const bytes =
        message.tensor() == v1::TENSOR_OUTPUT ? outcome.response.mutable_output()
        : message.tensor() == v1::TENSOR_LOG_SUM_EXP
            ? outcome.response.mutable_log_sum_exp()
            : outcome.response.mutable_weights();
    EXPECT_EQ(message.byte_offset(), static_cast<int64_t>(bytes->size()));
    bytes->append(message.data());
  }
  outcome.status = stream_->Finish();
  finished_ = true;
  EXPECT_TRUE(has_result || !outcome.status.ok());
  for (const auto& [key, value] : context_.GetServerTrailingMetadata()) {
    outcome.trailers.emplace(std::string(key.data(), key.size()),
                             std::string(value.data(), value.size()));
  }
  return outcome;
}

Outcome CallStream(std::shared_ptr<grpc::Channel> channel,
                   const v1::StreamAttentionStart& start,
                   const std::vector<v1::StreamAttentionRequest>& chunks) {
  StreamCaller caller(std::move(channel));
  caller.Start(start);
  for (const v1::StreamAttentionRequest& chunk : chunks) {
    if (!caller.Send(chunk)) break;
  }
  return caller.Finish();
}

}  // namespace attention::test
