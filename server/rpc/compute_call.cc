#include "server/rpc/compute_call.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "grpcpp/support/slice.h"
#include "server/engine/error_reason.h"
#include "server/rpc/region_references.h"
#include "server/rpc/status_translation.h"

namespace attention {
namespace {

constexpr char kTenantKey[] = "attention-tenant";
constexpr size_t kMaxTenantBytes = 128;

// A message as gRPC delivered it: slices of at most some 64 KiB.
struct WireMessage {
  explicit WireMessage(const grpc::ByteBuffer& message) {
    if (!message.Dump(&slices).ok()) slices.clear();
    for (const grpc::Slice& slice : slices) {
      fragments.emplace_back(reinterpret_cast<const char*>(slice.begin()),
                             slice.size());
    }
  }

  std::vector<grpc::Slice> slices;
  std::vector<absl::string_view> fragments;
};

absl::Time DeadlineOf(const grpc::CallbackServerContext& context) {
  const auto deadline = context.deadline();
  return deadline == std::chrono::system_clock::time_point::max()
             ? absl::InfiniteFuture()
             : absl::FromChrono(deadline);
}

// Who the caller says it is; with several such entries, any of them.
absl::StatusOr<std::string> TenantOf(const grpc::CallbackServerContext& context) {
  const auto it = context.client_metadata().find(kTenantKey);
  if (it == context.client_metadata().end()) return std::string();
  if (it->second.size() > kMaxTenantBytes) {
    return WithReason(absl::InvalidArgumentError(absl::StrCat(
                          "the metadata ", kTenantKey, " must have at most ",
                          kMaxTenantBytes, " bytes; got ", it->second.size())),
                      error_reason::kInvalidRequest);
  }
  return std::string(it->second.data(), it->second.size());
}

absl::Status CallerLeft(const grpc::CallbackServerContext& context) {
  return absl::Now() >= DeadlineOf(context)
             ? WithReason(absl::DeadlineExceededError(
                              "the deadline passed during the computation"),
                          error_reason::kDeadlineExceeded)
             : WithReason(absl::CancelledError("the caller cancelled"),
                          error_reason::kCancelled);
}

}  // namespace

ComputeCall* ComputeCall::Start(grpc::CallbackServerContext* context,
                                grpc::ByteBuffer request,
                                grpc::ByteBuffer* response,
                                Environment* environment) {
  auto call = std::make_shared<ComputeCall>(context, response, environment);
  call->self_ = call;
  call->Begin(std::move(request));
  return call.get();  // gRPC calls OnDone only after the handler has returned
}

ComputeCall::ComputeCall(grpc::CallbackServerContext* context,
                         grpc::ByteBuffer* response, Environment* environment)
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
  const std::string_view reason = PublicReason(status);
  if (reason != error_reason::kCancelled &&
      reason != error_reason::kDeadlineExceeded) {
    environment_->refusals.Warn("request refused", {reason.data(), reason.size()},
                                status);
  }
  std::optional<absl::Duration> retry_delay;
  if (reason == error_reason::kQueueFull) {
    retry_delay = environment_->scheduler->RetryDelay();
  }
  End(ToGrpcStatus(status, retry_delay, *context_), status.code());
}

void ComputeCall::End(const grpc::Status& status, absl::StatusCode code) {
  // Before Finish: a caller with its answer finds itself counted, and the
  // environment may be gone afterwards.
  environment_->metrics->RequestFinished(config_ ? &*config_ : nullptr, code,
                                         absl::Now() - start_time_);
  environment_->finished_calls.fetch_add(1, std::memory_order_relaxed);
  Finish(status);
}

void ComputeCall::OnDone() { self_.reset(); }

}  // namespace attention
