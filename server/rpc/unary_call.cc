#include "server/rpc/unary_call.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "server/engine/error_reason.h"
#include "server/scheduling/exit_status.h"

namespace attention {

void UnaryCall::Begin(std::shared_ptr<UnaryCall> self, ServerCall* call,
                      CallEnvironment* environment) {
  self_ = std::move(self);
  call_ = call;
  environment_ = environment;
  call_->Bind(this);
  call_->StartRead(&request_);
}

void UnaryCall::OnReadDone(bool ok) {
  start_time_ = absl::Now();
  // Not before: a message that never arrives does not keep the server.
  pass_ = environment_->gate.Enter();
  environment_->started_calls.fetch_add(1, std::memory_order_relaxed);
  environment_->metrics->RequestStarted();
  absl::StatusOr<Works> works = Receive(ok);
  if (!works.ok()) return Refuse(works.status());
  EventLoop::LetOthersPoll();  // it may be computed here
  works_.Start(environment_->scheduler, *std::move(works), self_);
}

absl::StatusOr<Works> UnaryCall::Receive(bool has_message) {
  if (!has_message) {
    return WithReason(
        absl::CancelledError("the call ended before its message had arrived"),
        error_reason::kCancelled);
  }
  environment_->metrics->BytesReceived(request_.Length());
  if (pass_ == nullptr) return DrainingStatus();
  auto message = std::make_shared<WireMessage>(request_);
  request_.Clear();  // the slices hold the memory now

  const absl::StatusOr<std::string> tenant = TenantOf(call_->context());
  if (!tenant.ok()) return tenant.status();
  absl::StatusOr<Works> works = Decode(*message, *tenant);
  if (!works.ok()) return works.status();
  for (const std::unique_ptr<AttentionWork>& work : *works) {
    work->payload_owner = message;
    work->tenant = *tenant;
    work->deadline = DeadlineOf(call_->context());
  }
  if (!works->empty()) {
    config_ = works->front()->config;
    environment_->metrics->PhaseFinished(Phase::kReceive, *config_,
                                         absl::Now() - start_time_);
  }
  return works;
}

void UnaryCall::OnCancel() { works_.Cancel(); }

void UnaryCall::OnWorksDone() {
  WorkGroup::Results& results = works_.results();
  const auto succeeded = [](const auto& result) { return result.ok(); };
  if (call_->IsCancelled() &&
      std::any_of(results.begin(), results.end(), succeeded)) {
    return Refuse(CallerLeft(call_->context()));
  }
  const absl::Time begin = absl::Now();
  absl::StatusOr<grpc::ByteBuffer> response = Encode(results);
  if (!response.ok()) return Refuse(response.status());
  environment_->metrics->BytesSent(response->Length());
  if (config_.has_value()) {
    environment_->metrics->PhaseFinished(Phase::kSend, *config_,
                                         absl::Now() - begin);
  }
  BeforeEnd(absl::StatusCode::kOk);
  call_->WriteAndFinish(*response);
}

void UnaryCall::Refuse(const absl::Status& status) {
  const grpc::Status refusal =
      RefusalOf(status, *environment_, call_->context());
  BeforeEnd(status.code());
  call_->Finish(refusal);
}

void UnaryCall::BeforeEnd(absl::StatusCode code) {
  // A caller with its answer may take its memory back and finds itself counted,
  // and the environment may be gone afterwards.
  Release();
  environment_->metrics->RequestFinished(config_ ? &*config_ : nullptr, code,
                                         absl::Now() - start_time_);
  environment_->finished_calls.fetch_add(1, std::memory_order_relaxed);
}

void UnaryCall::OnDone() {
  pass_.reset();
  self_.reset();
}

}  // namespace attention
