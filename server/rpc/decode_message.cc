#include "server/rpc/decode_message.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/rpc/response_parts.h"
#include "server/rpc/session_support.h"
#include "server/rpc/step_encoder.h"
#include "server/rpc/tensor_dims.h"

namespace attention {

absl::Status DecodeMessage::Decode(const WireMessage& message, Caller& caller,
                                   int64_t& tag, absl::StatusOr<Works>& works) {
  MessageArena arena;
  absl::StatusOr<ScannedDecode> scanned =
      ScanDecodeRequest(message.fragments, arena);
  if (!scanned.ok()) return scanned.status();
  tag = scanned->metadata->tag();
  for (const v1::DecodeItem& item : scanned->metadata->items()) {
    sessions_.push_back(item.session());
  }
  works = DecodeRequest(*std::move(scanned), caller);
  return absl::OkStatus();
}

absl::StatusOr<Works> DecodeMessage::DecodeRequest(ScannedDecode request,
                                                   Caller& caller) {
  const int32_t priority = request.metadata->priority();
  if (!caller.priority.has_value()) caller.priority = priority;
  if (priority != *caller.priority) {
    return InvalidField(
        "priority",
        absl::StrCat("that of the stream's first message, which is ",
                     *caller.priority),
        priority);
  }
  absl::StatusOr<DecodedSteps> decoded = DecodeStepsOf(
      caller.tenant, ReadSteps(std::move(request)), environment());
  if (!decoded.ok()) return decoded.status();
  plan_ = std::move(decoded->plan);
  return std::move(decoded->works);
}

absl::StatusOr<grpc::ByteBuffer> DecodeMessage::Encode(
    WorkGroup::Results& results, int64_t tag) {
  const WorkResults span = absl::MakeSpan(results);
  if (absl::Status s = CommonError(plan_, true, span); !s.ok()) return s;
  return EncodeDecodeResponse(
      plan_, span, tag,
      [this](const absl::Status& status) {
        return RetryDelayOf(status, environment());
      },
      environment().keep_alive);
}

grpc::ByteBuffer DecodeMessage::EncodeError(
    const absl::Status& status, std::optional<absl::Duration> retry_delay,
    int64_t tag) {
  return EncodeFailure<v1::StreamDecodeResponse>(status, retry_delay, tag);
}

}  // namespace attention
