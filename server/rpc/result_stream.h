// A result as messages of StreamAttention.
#ifndef ATTENTION_SERVER_RPC_RESULT_STREAM_H_
#define ATTENTION_SERVER_RPC_RESULT_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "attention/v1/attention.pb.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/engine/attention_work.h"
#include "server/rpc/response_encoder.h"
#include "server/rpc/response_parts.h"

namespace attention {

// Makes one message at a time: the first has the answer without its tensors,
// each has a chunk if there is any left. Nothing is copied: a chunk refers to the
// result's own memory, which goes back to its pool when the transport has sent
// the last one of its tensor.
class ResultStream {
 public:
  // Messages are at most of `max_message_bytes`, if that leaves room for more than
  // the metadata. `keep_alive` is released when the last byte has been sent.
  ResultStream(const ResponsePlan& plan, WorkResult result,
               int64_t max_message_bytes, std::shared_ptr<void> keep_alive);

  // Nothing after the last one.
  std::optional<grpc::ByteBuffer> Next();

 private:
  struct Tensor {
    v1::Tensor name;
    std::shared_ptr<const SharedBlock> memory;
  };

  const size_t chunk_bytes_;
  std::optional<v1::ComputeAttentionResponse> metadata_;  // until it is sent
  std::vector<Tensor> tensors_;  // what is left to send, the next one last
  size_t offset_ = 0;            // in that one
};

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_RESULT_STREAM_H_
