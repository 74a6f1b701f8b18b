#include "server/rpc/pipelined_message.h"

#include "absl/time/clock.h"

namespace attention {

PipelinedMessage::PipelinedMessage(std::shared_ptr<Stream> stream,
                                   CallEnvironment* environment)
    : stream_(std::move(stream)),
      environment_(environment),
      start_time_(absl::Now()) {}

absl::Status PipelinedMessage::Read(const std::shared_ptr<WireMessage>& message,
                                    Caller& caller) {
  absl::StatusOr<Works> works;
  if (absl::Status s = Decode(*message, caller, tag_, works); !s.ok()) return s;
  environment_->metrics->RequestStarted();
  status_ = works.status();
  if (!works.ok() || works->empty()) return absl::OkStatus();
  for (const std::unique_ptr<AttentionWork>& work : *works) {
    work->payload_owner = message;
    work->tenant = caller.tenant;
    work->deadline = caller.deadline;
    moved_bytes_ += work->moved_bytes();
  }
  to_start_ = *std::move(works);
  config_ = to_start_.front()->config;
  environment_->metrics->PhaseFinished(Phase::kReceive, *config_,
                                       absl::Now() - start_time_);
  return absl::OkStatus();
}

void PipelinedMessage::Start() {
  works_.Start(environment_->scheduler, std::move(to_start_),
               shared_from_this());
}

void PipelinedMessage::OnWorksDone() {
  const absl::Time begin = absl::Now();
  if (status_.ok()) {
    absl::StatusOr<grpc::ByteBuffer> answer = Encode(works_.results(), tag_);
    status_ = answer.status();
    if (answer.ok()) answer_.Swap(&*answer);
  }
  if (!status_.ok()) {
    answer_ = EncodeError(status_, RetryDelayOf(status_, *environment_), tag_);
    LogRefusal(status_, *environment_);
  }
  Metrics& metrics = *environment_->metrics;
  if (config_.has_value()) {
    metrics.PhaseFinished(Phase::kSend, *config_, absl::Now() - begin);
  }
  // A caller with its answer may take its memory back.
  Release();
  metrics.RequestFinished(config_ ? &*config_ : nullptr, status_.code(),
                          absl::Now() - start_time_);
  stream_->OnAnswered(shared_from_this());
}

}  // namespace attention
