#include "server/rpc/unary_call.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "server/engine/error_reason.h"
#include "server/scheduling/exit_status.h"

namespace attention {

UnaryCall::UnaryCall() : start_time_(absl::Now()) {}

void UnaryCall::Begin(std::shared_ptr<UnaryCall> self,
                      grpc::CallbackServerContext* context,
                      grpc::ByteBuffer* request, grpc::ByteBuffer* response,
                      CallEnvironment* environment) {
  self_ = std::move(self);
  context_ = context;
  response_ = response;
  environment_ = environment;
  pass_ = environment_->gate.Enter();
  environment_->started_calls.fetch_add(1, std::memory_order_relaxed);
  environment_->metrics->RequestStarted();
  absl::StatusOr<Works> works = Receive(request);
  if (!works.ok()) return Refuse(works.status());
  works_.Start(environment_->scheduler, *std::move(works), self_);
}

absl::StatusOr<Works> UnaryCall::Receive(grpc::ByteBuffer* request) {
  if (!request->Valid()) {
    return WithReason(
        absl::CancelledError("the call ended before its message had arrived"),
        error_reason::kCancelled);
  }
  environment_->metrics->BytesReceived(request->Length());
  if (pass_ == nullptr) return DrainingStatus();
  auto message = std::make_shared<WireMessage>(*request);
  request->Clear();  // the slices hold the memory now

  const absl::StatusOr<std::string> tenant = TenantOf(*context_);
  if (!tenant.ok()) return tenant.status();
  absl::StatusOr<Works> works = Decode(*message, *tenant);
  if (!works.ok()) return works.status();
  for (const std::unique_ptr<AttentionWork>& work : *works) {
    work->payload_owner = message;
    work->tenant = *tenant;
    work->deadline = DeadlineOf(*context_);
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
  if (context_->IsCancelled() &&
      std::any_of(results.begin(), results.end(), succeeded)) {
    return Refuse(CallerLeft(*context_));
  }
  const absl::Time begin = absl::Now();
  absl::StatusOr<grpc::ByteBuffer> response = Encode(results);
  if (!response.ok()) return Refuse(response.status());
  *response_ = *std::move(response);
  environment_->metrics->BytesSent(response_->Length());
  if (config_.has_value()) {
    environment_->metrics->PhaseFinished(Phase::kSend, *config_,
                                         absl::Now() - begin);
  }
  End(grpc::Status::OK, absl::StatusCode::kOk);
}

void UnaryCall::Refuse(const absl::Status& status) {
  End(RefusalOf(status, *environment_, *context_), status.code());
}

void UnaryCall::End(const grpc::Status& status, absl::StatusCode code) {
  // Before Finish: a caller with its answer may take its memory back and finds
  // itself counted, and the environment may be gone afterwards.
  Release();
  environment_->metrics->RequestFinished(config_ ? &*config_ : nullptr, code,
                                         absl::Now() - start_time_);
  environment_->finished_calls.fetch_add(1, std::memory_order_relaxed);
  Finish(status);
}

void UnaryCall::OnDone() {
  pass_.reset();
  self_.reset();
}

}  // namespace attention
