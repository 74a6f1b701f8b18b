// What messages that carry results are put together from.
#ifndef ATTENTION_SERVER_RPC_RESPONSE_PARTS_H_
#define ATTENTION_SERVER_RPC_RESPONSE_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "attention/v1/attention.pb.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "server/engine/attention_work.h"
#include "server/memory/memory_pool.h"
#include "server/rpc/response_encoder.h"
#include "server/rpc/status_translation.h"

namespace attention {

// All of the answer but its tensors.
void SetMetadata(const ResponsePlan& plan, const WorkResult& result,
                 v1::ComputeAttentionResponse& response);

void SetTimings(const WorkResult& result, v1::ComputeAttentionTimings& timings);

// Moves the weights to where they belong in a padded batch, in place.
void SpreadWeights(const ResponsePlan& plan, const Block& weights);

// Tag and length of a `bytes` field of at most 4 GiB.
class PayloadHeader {
 public:
  PayloadHeader(int field, size_t size);

  const uint8_t* data() const { return bytes_; }
  size_t size() const { return size_; }

 private:
  uint8_t bytes_[10];
  size_t size_;
};

// The message, behind what is to come before it.
grpc::Slice Serialize(const google::protobuf::MessageLite& message,
                      absl::string_view prefix = {});

// The answer to a message of a stream that failed as a whole.
template <typename StreamResponse>
grpc::ByteBuffer EncodeFailure(const absl::Status& status,
                               std::optional<absl::Duration> retry_delay,
                               int64_t tag) {
  StreamResponse response;
  response.set_tag(tag);
  SetStepError(status, retry_delay, *response.mutable_error());
  const grpc::Slice slice = Serialize(response);
  return grpc::ByteBuffer(&slice, 1);
}

// Memory that slices of messages refer to, until the last of them is gone. The
// block goes first.
struct SharedBlock {
  std::shared_ptr<void> keep_alive;
  Block block;
};

// `size` bytes of it, from `offset` on.
grpc::Slice SliceOf(const std::shared_ptr<const SharedBlock>& shared,
                    size_t offset, size_t size);

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_RESPONSE_PARTS_H_
