// What requests that use sessions have in common: appending, attending and both
// at once are steps of layers, and differ only in which tensors they have.
#ifndef ATTENTION_SERVER_RPC_STEP_REQUEST_H_
#define ATTENTION_SERVER_RPC_STEP_REQUEST_H_

#include <cstdint>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "kernels/mask.h"
#include "server/engine/payload.h"
#include "server/rpc/request_scanner.h"

namespace attention {

// What a message asks of one layer.
struct RequestedStep {
  absl::string_view session;  // in the message
  int64_t layer = 0;
  int64_t token_count = 0;  // to append, to attend with, or both
  std::optional<int64_t> expected_position;
  std::optional<KeyRange> key_range;
};

struct StepsRequest {
  bool appends = false;
  bool attends = false;
  // Whether steps have errors of their own; otherwise there is one step, and its
  // error is the request's.
  bool has_items = false;
  absl::InlinedVector<RequestedStep, 1> steps;
  std::optional<double> scale;
  bool return_log_sum_exp = false;
  int32_t priority = 0;
  // [tokens of all steps, heads, head dimension]; only those of what it does.
  Payload query;
  Payload key;
  Payload value;
};

// The results refer to the message.
StepsRequest ReadSteps(ScannedAppend message);
StepsRequest ReadSteps(ScannedAttend message);
StepsRequest ReadSteps(ScannedDecode message);

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_STEP_REQUEST_H_
