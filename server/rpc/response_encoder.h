// Turns a result into the bytes of a ComputeAttentionResponse, alone or in a
// stream.
//
// The message is assembled from slices: a few bytes of serialised metadata, and
// the result's own memory for the tensors. Nothing is copied; the memory goes
// back to its pool when the transport has sent it.
#ifndef ATTENTION_SERVER_RPC_RESPONSE_ENCODER_H_
#define ATTENTION_SERVER_RPC_RESPONSE_ENCODER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "attention/v1/attention.pb.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/engine/attention_work.h"
#include "server/regions/region.h"

namespace attention {

// Where results go instead of into the answer; null for those that do not.
struct ResultTargets {
  std::shared_ptr<const RegionRange> output;
  std::shared_ptr<const RegionRange> log_sum_exp;
  std::shared_ptr<const RegionRange> weights;
};

using Shape = absl::InlinedVector<int64_t, 4>;

// What the request already says about the answer.
struct ResponsePlan {
  v1::DataType data_type = v1::DATA_TYPE_UNSPECIFIED;
  Shape output_shape;
  bool has_log_sum_exp = false;
  Shape log_sum_exp_shape;
  bool has_weights = false;
  Shape weights_shape;

  // Query and key lengths of each sequence when weights_shape has room for
  // longer ones; otherwise empty. Devices write each sequence's weights densely
  // to the start of its part; the encoder moves the rows to their places.
  std::vector<std::pair<int64_t, int64_t>> padded_lengths;

  ResultTargets targets;  // each as large as its tensor
};

// Bytes that an answer needs beside its tensors, at most.
inline constexpr int64_t kResponseMetadataBytes = 1024;

// Writes the tensors that have a target to it, unless the device has done so,
// and lets go of their memory, so that EncodeResponse leaves them out. Call it
// before. Returns the bytes written. Errors are RegionRange::Write's.
absl::StatusOr<size_t> WriteToTargets(const ResponsePlan& plan,
                                      WorkResult& result);

// A ComputeAttentionResponse; with a tag a StreamComputeAttentionResponse.
// `keep_alive` is released when the last byte has been sent.
grpc::ByteBuffer EncodeResponse(const ResponsePlan& plan, WorkResult result,
                                std::shared_ptr<void> keep_alive,
                                std::optional<int64_t> tag = std::nullopt);

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_RESPONSE_ENCODER_H_
