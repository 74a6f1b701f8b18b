// Turns the results of steps into the bytes of their answer. As in
// response_encoder.h, tensors are not copied: the message refers to the results'
// own memory.
#ifndef ATTENTION_SERVER_RPC_STEP_ENCODER_H_
#define ATTENTION_SERVER_RPC_STEP_ENCODER_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/engine/attention_work.h"
#include "server/rpc/step_decoder.h"

namespace attention {

// Of the works, in order. They give their memory away.
using WorkResults = absl::Span<absl::StatusOr<WorkResult>>;

// After which a failed step is worth another attempt.
using RetryDelays =
    absl::FunctionRef<std::optional<absl::Duration>(const absl::Status&)>;

// The error that concerns all steps: that of a work, if every work failed as a
// whole; that of the step, if it is the only one and has no item of its own.
absl::Status CommonError(const StepsPlan& plan, bool has_items,
                         WorkResults results);

// An AppendKeysValuesResponse, after CommonError has returned OK.
grpc::ByteBuffer EncodeAppendResponse(const WorkResult& result);

// An AttendSessionResponse, as above. `keep_alive` is released when the last byte
// has been sent.
grpc::ByteBuffer EncodeAttendResponse(WorkResult result,
                                      std::shared_ptr<void> keep_alive);

// A DecodeResponse, as above; with a tag a StreamDecodeResponse.
grpc::ByteBuffer EncodeDecodeResponse(const StepsPlan& plan,
                                      WorkResults results,
                                      std::optional<int64_t> tag,
                                      RetryDelays retry_delay_of,
                                      std::shared_ptr<void> keep_alive);

}  // namespace attention

#endif  // ATTENTION_SERVER_RPC_STEP_ENCODER_H_
