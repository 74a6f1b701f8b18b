#include "server/rpc/decode_message.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/rpc/session_support.h"
#include "server/rpc/status_translation.h"
#include "server/rpc/step_encoder.h"
#include "server/rpc/tensor_dims.h"

namespace attention {

DecodeMessage::DecodeMessage(std::shared_ptr<Stream> stream,
                             CallEnvironment* environment)
    : stream_(std::move(stream)),
      environment_(environment),
      start_time_(absl::Now()) {}

absl::Status DecodeMessage::Read(
    const std::shared_ptr<const WireMessage>& message,
    const std::string& tenant, absl::Time deadline,
    std::optional<int32_t> priority_of_stream) {
  MessageArena arena;
  absl::StatusOr<ScannedDecode> scanned =
      ScanDecodeRequest(message->fragments, arena);
  if (!scanned.ok()) return scanned.status();
  tag_ = scanned->metadata->tag();
  priority_ = scanned->metadata->priority();
  for (const v1::DecodeItem& item : scanned->metadata->items()) {
    sessions_.push_back(item.session());
  }
  environment_->metrics->RequestStarted();
  status_ = Decode(ReadSteps(*std::move(scanned)), tenant, priority_of_stream);
  for (const std::unique_ptr<AttentionWork>& work : to_start_) {
    work->payload_owner = std::const_pointer_cast<WireMessage>(message);
    work->tenant = tenant;
    work->deadline = deadline;
  }
  return absl::OkStatus();
}

absl::Status DecodeMessage::Decode(StepsRequest request,
                                   const std::string& tenant,
                                   std::optional<int32_t> priority_of_stream) {
  if (priority_of_stream.has_value() && priority_ != *priority_of_stream) {
    return InvalidField(
        "priority",
        absl::StrCat("that of the stream's first message, which is ",
                     *priority_of_stream),
        priority_);
  }
  absl::StatusOr<DecodedSteps> decoded =
      DecodeStepsOf(tenant, std::move(request), *environment_);
  if (!decoded.ok()) return decoded.status();
  to_start_ = std::move(decoded->works);
  plan_ = std::move(decoded->plan);
  if (!to_start_.empty()) {
    config_ = to_start_.front()->config;
    environment_->metrics->PhaseFinished(Phase::kReceive, *config_,
                                         absl::Now() - start_time_);
  }
  return absl::OkStatus();
}

void DecodeMessage::Start() {
  works_.Start(environment_->scheduler, std::move(to_start_),
               shared_from_this());
}

void DecodeMessage::OnWorksDone() {
  const absl::Time begin = absl::Now();
  const WorkResults results = absl::MakeSpan(works_.results());
  const auto retry_delay_of = [this](const absl::Status& status) {
    return RetryDelayOf(status, *environment_);
  };
  if (status_.ok()) status_ = CommonError(plan_, true, results);
  answer_ = status_.ok()
                ? EncodeDecodeResponse(plan_, results, tag_, retry_delay_of,
                                       environment_->keep_alive)
                : EncodeStepFailure(status_, retry_delay_of(status_), tag_);
  Metrics& metrics = *environment_->metrics;
  if (config_.has_value()) {
    metrics.PhaseFinished(Phase::kSend, *config_, absl::Now() - begin);
  }
  if (!status_.ok()) LogRefusal(status_, *environment_);
  metrics.RequestFinished(config_ ? &*config_ : nullptr, status_.code(),
                          absl::Now() - start_time_);
  stream_->OnAnswered(shared_from_this());
}

}  // namespace attention
