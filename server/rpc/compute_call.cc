#include "server/rpc/compute_call.h"

#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "server/engine/error_reason.h"
#include "server/rpc/region_references.h"
#include "server/rpc/request_decoder.h"

namespace attention {

ComputeCall* ComputeCall::Start(grpc::CallbackServerContext* context,
                                grpc::ByteBuffer request,
                                grpc::ByteBuffer* response,
                                CallEnvironment* environment) {
  auto call = std::make_shared<ComputeCall>(context, response, environment);
  call->self_ = call;
  call->Begin(std::move(request));
  return call.get();  // gRPC calls OnDone only after the handler has returned
}

ComputeCall::ComputeCall(grpc::CallbackServerContext* context,
                         grpc::ByteBuffer* response, CallEnvironment* environment)
    : context_(context),
      response_(response),
      environment_(environment),
      start_time_(absl::Now()) {}

void ComputeCall::Begin(grpc::ByteBuffer request) {
  environment_->started_calls.fetch_add(1, std::memory_order_relaxed);
  environment_->metrics->RequestStarted();
  if (!request.Valid()) {
    return Refuse(WithReason(
        absl::CancelledError("the call ended before its message had arrived"),
        error_reason::kCancelled));
  }
  environment_->metrics->BytesReceived(request.Length());
  auto message = std::make_shared<WireMessage>(request);
  request.Clear();  // the slices hold the memory now

  MessageArena arena;
  absl::StatusOr<ScannedRequest> scanned =
      ScanRequest(message->fragments, arena);
  if (!scanned.ok()) return Refuse(scanned.status());
  const absl::Status resolved =
      ResolveReferences(environment_->regions, *scanned);
  if (!resolved.ok()) return Refuse(resolved);
  environment_->metrics->SharedMemoryBytesReceived(ReferencedBytes(*scanned));
  absl::StatusOr<DecodedRequest> decoded =
      DecodeRequest(*std::move(scanned), environment_->limits);
  if (!decoded.ok()) return Refuse(decoded.status());

  config_ = decoded->work->config;
  plan_ = std::move(decoded->plan);
  decoded->work->payload_owner = std::move(message);
  environment_->metrics->PhaseFinished(Phase::kReceive, *config_,
                                       absl::Now() - start_time_);
  if (absl::Status s = Enqueue(std::move(decoded->work)); !s.ok()) Refuse(s);
}

absl::Status ComputeCall::Enqueue(std::unique_ptr<AttentionWork> work) {
  absl::StatusOr<std::string> tenant = TenantOf(*context_);
  if (!tenant.ok()) return tenant.status();
  work->tenant = *std::move(tenant);
  work->deadline = DeadlineOf(*context_);
  work->done = [call = self_](absl::StatusOr<WorkResult> result) {
    call->Complete(std::move(result));
  };
  const absl::StatusOr<WorkId> id = environment_->scheduler->Enqueue(work);
  if (!id.ok()) return id.status();
  bool cancelled;
  {
    absl::MutexLock lock(&mutex_);
    work_id_ = *id;
    cancelled = cancelled_;
  }
  if (cancelled) environment_->scheduler->Cancel(*id);
  return absl::OkStatus();
}

void ComputeCall::OnCancel() {
  std::optional<WorkId> id;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    id = work_id_;
  }
  // Outside the lock: it may call Complete. Without an id yet, Enqueue cancels.
  if (id.has_value()) environment_->scheduler->Cancel(*id);
}

void ComputeCall::Complete(absl::StatusOr<WorkResult> result) {
  if (!result.ok()) return Refuse(result.status());
  if (context_->IsCancelled()) return Refuse(CallerLeft(*context_));
  Answer(*std::move(result));
}

void ComputeCall::Answer(WorkResult result) {
  const absl::Time begin = absl::Now();
  Metrics& metrics = *environment_->metrics;
  const absl::StatusOr<size_t> written = WriteToTargets(plan_, result);
  if (!written.ok()) return Refuse(written.status());
  metrics.SharedMemoryBytesSent(*written);
  *response_ =
      EncodeResponse(plan_, std::move(result), environment_->keep_alive);
  metrics.BytesSent(response_->Length());
  metrics.PhaseFinished(Phase::kSend, *config_, absl::Now() - begin);
  End(grpc::Status::OK, absl::StatusCode::kOk);
}

void ComputeCall::Refuse(const absl::Status& status) {
  End(RefusalOf(status, *environment_, *context_), status.code());
}

void ComputeCall::End(const grpc::Status& status, absl::StatusCode code) {
  // Before Finish: a caller with its answer may take its memory back and finds
  // itself counted, and the environment may be gone afterwards.
  plan_.targets = {};
  environment_->metrics->RequestFinished(config_ ? &*config_ : nullptr, code,
                                         absl::Now() - start_time_);
  environment_->finished_calls.fetch_add(1, std::memory_order_relaxed);
  Finish(status);
}

void ComputeCall::OnDone() { self_.reset(); }

}  // namespace attention
