// Calls of StreamAttention, message by message.
#ifndef ATTENTION_TESTS_SERVER_LIFECYCLE_STREAM_FIXTURE_H_
#define ATTENTION_TESTS_SERVER_LIFECYCLE_STREAM_FIXTURE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "attention/v1/attention.grpc.pb.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "tests/server/lifecycle/server_fixture.h"

namespace attention::test {

// The start of a stream for a whole request.
v1::StreamAttentionStart StartOf(const v1::ComputeAttentionRequest& request,
                                 const std::string& upload_id = "");

// The tensors of the request as chunks of at most `chunk_bytes`, in order.
std::vector<v1::StreamAttentionRequest> ChunksOf(
    const v1::ComputeAttentionRequest& request, size_t chunk_bytes);

v1::StreamAttentionRequest Chunk(v1::Tensor tensor, int64_t byte_offset,
                                 const std::string& data);

// One stream.
class StreamCaller {
 public:
  explicit StreamCaller(
      std::shared_ptr<grpc::Channel> channel,
      const std::function<void(grpc::ClientContext&)>& prepare = {});
  ~StreamCaller();

  // Whether the stream still took it.
  bool Start(const v1::StreamAttentionStart& start);
  bool Send(const v1::StreamAttentionRequest& message);
  void CloseSide() { stream_->WritesDone(); }
  void Cancel() { context_.TryCancel(); }

  // The next state of the upload, or an empty one when the stream has ended.
  v1::UploadState ReadState();

  // Reads to the end: the status, and the answer put together. Checks that
  // chunks come in order and without gaps.
  Outcome Finish();

 private:
  grpc::ClientContext context_;
  std::unique_ptr<v1::AttentionService::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::StreamAttentionRequest,
                                           v1::StreamAttentionResponse>>
      stream_;
  bool finished_ = false;
};

// A whole call.
Outcome CallStream(std::shared_ptr<grpc::Channel> channel,
                   const v1::StreamAttentionStart& start,
                   const std::vector<v1::StreamAttentionRequest>& chunks);

}  // namespace attention::test

#endif  // ATTENTION_TESTS_SERVER_LIFECYCLE_STREAM_FIXTURE_H_
