// Turns requests that use sessions into works.
//
// As in request_decoder.h, nothing is trusted. What concerns the layer itself, its
// length and the memory that it needs, is checked when the work's batch begins
// (KvCache).
#ifndef ATTENTION_SERVER_RPC_STEP_DECODER_H_
#define ATTENTION_SERVER_RPC_STEP_DECODER_H_

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/engine/attention_work.h"
#include "server/rpc/step_request.h"
#include "server/rpc/work_builder.h"
#include "server/sessions/session.h"

namespace attention {

// Most items of one request.
inline constexpr int kMaxDecodeItems = 4096;

// What the request already says about the answer.
struct StepsPlan {
  struct Item {
    int64_t token_count = 0;
    // Not OK: it failed already, and is part of no work.
    absl::Status status;
    int work = 0;      // which of the works has it
    int sequence = 0;  // and as which of its sequences
  };
  absl::InlinedVector<Item, 1> items;
  // Of one token; 0 for what is not returned.
  int64_t output_token_bytes = 0;
  int64_t log_sum_exp_token_bytes = 0;
};

struct DecodedSteps {
  // One for each device that has some of the sessions; none if all failed. Without
  // owner, tenant, times and `done`.
  Works works;
  StepsPlan plan;
};

// Finds the layer of a session: SessionRegistry::Use for the caller.
using FindLayer = absl::FunctionRef<absl::StatusOr<SessionUse>(
    absl::string_view session, int64_t layer)>;

// Errors, beside those of `find`:
//   INVALID_ARGUMENT    INVALID_REQUEST or UNSUPPORTED
//   RESOURCE_EXHAUSTED  REQUEST_TOO_LARGE: the answer or the computation exceeds
//                       the limits
absl::StatusOr<DecodedSteps> DecodeSteps(StepsRequest request, FindLayer find,
                                         const RequestLimits& limits);

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_STEP_DECODER_H_
