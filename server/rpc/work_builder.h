// From a request whose fields are sound to work for a device and the shape of
// the answer.
#ifndef ATTENTION_SERVER_RPC_WORK_BUILDER_H_
#define ATTENTION_SERVER_RPC_WORK_BUILDER_H_

#include <cstdint>
#include <memory>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/v1/attention.pb.h"
#include "kernels/attention_params.h"
#include "server/engine/attention_work.h"
#include "server/rpc/response_encoder.h"
#include "server/rpc/tensor_dims.h"

namespace attention {

struct RequestLimits {
  // Largest answer in bytes, without what goes to regions. (Requests are bounded
  // by gRPC with the same value.)
  int64_t max_message_bytes = int64_t{1} << 30;
  // Most tensor bytes of a stream, in and out.
  int64_t max_stream_bytes = int64_t{1} << 30;
  // Most floating point operations of one request.
  double max_request_flops = 1e15;
};

// Of one request.
using Works = absl::InlinedVector<std::unique_ptr<AttentionWork>, 1>;

struct DecodedRequest {
  std::unique_ptr<AttentionWork> work;  // without owner, times and `done`
  ResponsePlan plan;
};

// One per sequence; few requests have many.
using Lengths = absl::InlinedVector<int64_t, 8>;

// What a request asks for. Tensors agree with each other and with their
// payloads, and lengths with the tensors.
struct Problem {
  HeadConfig config;
  v1::Layout layout = v1::LAYOUT_BSHD;
  TensorDims query;
  TensorDims key;
  TensorDims value;
  Lengths query_lengths;
  Lengths key_lengths;
  double scale = 1;
  HeadScales scales;
  int64_t window_left = kUnlimitedWindow;
  int64_t window_right = kUnlimitedWindow;
  bool return_log_sum_exp = false;
  bool return_weights = false;
  ResultTargets targets;

  bool ragged() const { return layout == v1::LAYOUT_THD; }
};

// RESOURCE_EXHAUSTED (REQUEST_TOO_LARGE) that reads "<what> must be at most
// <bound>; got <value>".
absl::Status TooLarge(absl::string_view what, absl::string_view bound,
                      absl::string_view value);

// Everything but the payloads. RESOURCE_EXHAUSTED when the answer or the
// computation exceeds `limits`.
absl::StatusOr<DecodedRequest> BuildWork(Problem problem,
                                         const RequestLimits& limits);

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_WORK_BUILDER_H_
