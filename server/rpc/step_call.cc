#include "server/rpc/step_call.h"

#include <optional>
#include <utility>

#include "server/rpc/session_support.h"
#include "server/rpc/step_encoder.h"

namespace attention {
namespace {

absl::StatusOr<StepsRequest> Scan(StepCall::Kind kind,
                                  const WireMessage& message,
                                  MessageArena& arena) {
  const auto read = [](auto scanned) -> absl::StatusOr<StepsRequest> {
    if (!scanned.ok()) return scanned.status();
    return ReadSteps(*std::move(scanned));
  };
  switch (kind) {
    case StepCall::Kind::kAppend:
      return read(ScanAppendRequest(message.fragments, arena));
    case StepCall::Kind::kAttend:
      return read(ScanAttendRequest(message.fragments, arena));
    default: return read(ScanDecodeRequest(message.fragments, arena));
  }
}

}  // namespace

absl::StatusOr<Works> StepCall::Decode(const WireMessage& message,
                                       const std::string& tenant) {
  MessageArena arena;
  absl::StatusOr<StepsRequest> request = Scan(kind_, message, arena);
  if (!request.ok()) return request.status();
  absl::StatusOr<DecodedSteps> decoded =
      DecodeStepsOf(tenant, *std::move(request), environment());
  if (!decoded.ok()) return decoded.status();
  plan_ = std::move(decoded->plan);
  return std::move(decoded->works);
}

absl::StatusOr<grpc::ByteBuffer> StepCall::Encode(WorkGroup::Results& results) {
  const WorkResults span = absl::MakeSpan(results);
  const absl::Status error =
      CommonError(plan_, kind_ == Kind::kDecode, span);
  if (!error.ok()) return error;
  switch (kind_) {
    case Kind::kAppend: return EncodeAppendResponse(*results.front());
    case Kind::kAttend:
      return EncodeAttendResponse(*std::move(results.front()),
                                  environment().keep_alive);
    default:
      return EncodeDecodeResponse(
          plan_, span, std::nullopt,
          [this](const absl::Status& status) {
            return RetryDelayOf(status, environment());
          },
          environment().keep_alive);
  }
}

}  // namespace attention
