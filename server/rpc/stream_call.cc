#include "server/rpc/stream_call.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/engine/error_reason.h"
#include "server/rpc/tensor_dims.h"
#include "server/scheduling/exit_status.h"

namespace attention {
namespace {

// How often the state of an upload is reported.
constexpr size_t kReportBytes = size_t{64} << 20;

}  // namespace

void StreamCall::Start(ServerCall* call, CallEnvironment* environment,
                       StreamTable* table) {
  auto stream = std::make_shared<StreamCall>(call, environment, table);
  stream->self_ = stream;
  stream->pass_ = environment->gate.Enter();
  environment->started_calls.fetch_add(1, std::memory_order_relaxed);
  environment->metrics->RequestStarted();
  table->Add(stream);
  call->Bind(stream.get());
  if (stream->pass_ == nullptr) return stream->End(DrainingStatus());
  absl::MutexLock lock(&stream->mutex_);
  if (!stream->ended_) call->StartRead(&stream->read_);
}

StreamCall::StreamCall(ServerCall* call, CallEnvironment* environment,
                       StreamTable* table)
    : call_(call),
      environment_(environment),
      table_(table),
      start_time_(absl::Now()),
      last_move_(environment->clock->Now()) {}

void StreamCall::OnReadDone(bool ok) {
  if (!ok) {
    // Nothing is read once every byte is there.
    return End(
        call_->IsCancelled()
            ? CallerLeft(call_->context())
            : InvalidRequest("the caller closed its side of the stream before "
                             "every byte was there"));
  }
  Touch();
  environment_->metrics->BytesReceived(read_.Length());
  EventLoop::LetOthersPoll();  // chunks are copied here
  absl::Status status;
  {
    const WireMessage message(read_);
    read_.Clear();  // the slices hold the memory now
    MessageArena arena;
    const auto scanned = ScanStreamRequest(message.fragments, arena);
    status = scanned.ok() ? Take(*scanned) : scanned.status();
  }
  if (!status.ok()) return End(status);

  absl::MutexLock lock(&mutex_);
  if (!ended_ && stage_ == Stage::kReceiving) call_->StartRead(&read_);
}

absl::Status StreamCall::Take(const ScannedStreamRequest& message) {
  absl::Status status;
  if (work_ == nullptr) {
    absl::StatusOr<std::string> tenant = TenantOf(call_->context());
    if (!tenant.ok()) return tenant.status();
    if (!message.metadata->has_start()) {
      return InvalidRequest("the first message must have start");
    }
    if (message.data.size_bytes() > 0) {
      return InvalidRequest("the message with start must have no data");
    }
    status = Begin(message.metadata->start(), *std::move(tenant));
  } else {
    if (message.metadata->has_start()) {
      return InvalidRequest("only the first message may have start");
    }
    status = Write(message);
  }
  if (!status.ok()) return status;
  std::shared_ptr<Upload> upload;
  {
    absl::MutexLock lock(&mutex_);
    if (ended_) return absl::OkStatus();
    upload = hold_->upload();
  }
  const size_t received = upload->received_bytes();
  if (received == upload->sizes().total()) return Enqueue();
  if (received - reported_bytes_ >= kReportBytes) {
    reported_bytes_ = received;
    absl::MutexLock lock(&mutex_);
    state_wanted_ = true;
    AdvanceLocked();
  }
  return absl::OkStatus();
}

absl::Status StreamCall::Begin(const v1::StreamAttentionStart& start,
                               std::string tenant) {
  absl::StatusOr<DecodedStart> decoded = DecodeStart(
      start, environment_->limits, environment_->uploads->options().max_lease);
  if (!decoded.ok()) return decoded.status();
  work_ = std::move(decoded->request.work);
  plan_ = std::move(decoded->request.plan);
  work_->tenant = std::move(tenant);
  work_->deadline = DeadlineOf(call_->context());
  if (!decoded->upload.id.empty()) lease_ = decoded->upload.lease;
  {
    absl::MutexLock lock(&mutex_);
    config_ = work_->config;
  }

  auto opened = environment_->uploads->Open(decoded->upload, weak_from_this());
  if (!opened.ok()) return opened.status();
  std::shared_ptr<UploadRegistry::Hold> hold = *std::move(opened);
  Upload& upload = *hold->upload();
  if (absl::Status s = upload.device().ReserveResults(*work_); !s.ok()) {
    // Nobody needs to wait for the end of a lease of nothing.
    if (!hold->resumed()) hold->Complete();
    return absl::IsResourceExhausted(s)
               ? WithReason(std::move(s), error_reason::kQueueFull)
               : s;
  }
  reported_bytes_ = upload.received_bytes();
  absl::MutexLock lock(&mutex_);
  if (ended_) return absl::OkStatus();
  hold_ = std::move(hold);
  state_wanted_ = true;
  AdvanceLocked();
  return absl::OkStatus();
}

absl::Status StreamCall::Write(const ScannedStreamRequest& message) {
  const absl::StatusOr<InputTensor> tensor =
      InputOf(message.metadata->tensor());
  if (!tensor.ok()) return tensor.status();
  const size_t size = message.data.size_bytes();
  if (size > kMaxChunkBytes) {
    return InvalidField("data (its size in bytes)",
                        absl::StrCat("at most ", kMaxChunkBytes),
                        static_cast<int64_t>(size));
  }
  std::shared_ptr<UploadRegistry::Hold> hold;
  {
    absl::MutexLock lock(&mutex_);
    if (ended_) return absl::OkStatus();
    hold = hold_;
  }
  return hold->Write(*tensor, message.metadata->byte_offset(),
                     message.data.fragments);
}

absl::Status StreamCall::Enqueue() {
  const HeadConfig config = work_->config;
  environment_->metrics->PhaseFinished(Phase::kReceive, config,
                                       absl::Now() - start_time_);
  {
    absl::MutexLock lock(&mutex_);
    if (ended_) return absl::OkStatus();
    stage_ = Stage::kComputing;
    absl::Status status = Upload::Provide(hold_->upload(), *work_);
    if (!status.ok()) return status;
    hold_->ReleaseUnlessResumable();
    state_wanted_ = false;
  }
  work_->done = [call = shared_from_this()](absl::StatusOr<WorkResult> result) {
    call->Complete(std::move(result));
  };
  const absl::StatusOr<WorkId> id = environment_->scheduler->Enqueue(work_);
  if (!id.ok()) {
    work_->done = nullptr;  // holds this call, which holds the work
    return id.status();
  }
  bool ended;
  {
    absl::MutexLock lock(&mutex_);
    work_id_ = *id;
    ended = ended_;
  }
  if (ended) environment_->scheduler->Cancel(*id);
  return absl::OkStatus();
}

void StreamCall::Complete(absl::StatusOr<WorkResult> result) {
  if (!result.ok()) return End(result.status());
  absl::MutexLock lock(&mutex_);
  if (ended_) return;
  stage_ = Stage::kSending;
  send_start_ = absl::Now();
  last_move_ = environment_->clock->Now();
  result_ = std::make_unique<ResultStream>(
      plan_, *std::move(result), environment_->limits.max_message_bytes,
      environment_->keep_alive);
  AdvanceLocked();
}

void StreamCall::OnWriteDone(bool ok) {
  bool sent = false;
  {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    last_move_ = environment_->clock->Now();
    if (ok || ended_) AdvanceLocked();
    sent = ok && stage_ == Stage::kSending && !writing_;
  }
  if (!ok) return End(CallerLeft(call_->context()));
  if (sent) End(absl::OkStatus());
}

void StreamCall::AdvanceLocked() {
  if (writing_ || finishing_) return;
  if (final_status_.has_value()) {
    finishing_ = true;
    call_->Finish(*final_status_);
    return;
  }
  if (ended_) return;  // the status is on its way
  std::optional<grpc::ByteBuffer> message;
  if (state_wanted_) {
    state_wanted_ = false;
    message = EncodeUploadState(*hold_->upload(), lease_);
  } else if (result_ != nullptr) {
    message = result_->Next();
    if (!message.has_value()) result_.reset();
  }
  if (!message.has_value()) return;
  writing_ = true;
  environment_->metrics->BytesSent(message->Length());
  call_->StartWrite(*message);
}

void StreamCall::OnCancel() { End(CallerLeft(call_->context())); }

void StreamCall::OnTakenOver() {
  End(WithReason(absl::AbortedError("another stream has taken the upload over"),
                 error_reason::kUploadTakenOver));
}

void StreamCall::EndIfIdleSince(absl::Time limit) {
  {
    absl::MutexLock lock(&mutex_);
    if (ended_ || writing_ || stage_ == Stage::kComputing) return;
    if (last_move_ > limit) return;
  }
  End(WithReason(absl::AbortedError("nothing has come on the stream for too "
                                    "long"),
                 error_reason::kStreamIdle));
}

void StreamCall::End(const absl::Status& status) {
  std::optional<HeadConfig> config;
  std::shared_ptr<UploadRegistry::Hold> hold;
  std::unique_ptr<ResultStream> result;
  std::optional<WorkId> work_id;
  absl::Time send_start;
  {
    absl::MutexLock lock(&mutex_);
    if (ended_) return;
    ended_ = true;
    config = config_;
    work_id = work_id_;
    send_start = send_start_;
    result = std::move(result_);
    // Whether the answer was delivered shows in the end.
    if (!status.ok()) hold = std::move(hold_);
  }
  // Outside the lock: it may call Complete.
  if (!status.ok() && work_id.has_value()) {
    environment_->scheduler->Cancel(*work_id);
  }
  hold.reset();  // before the caller knows, who may come back at once
  Metrics& metrics = *environment_->metrics;
  if (status.ok()) {
    metrics.PhaseFinished(Phase::kSend, *config, absl::Now() - send_start);
  }
  // Before Finish: a caller with its answer finds itself counted, and the
  // environment may be gone afterwards.
  metrics.RequestFinished(config.has_value() ? &*config : nullptr,
                          status.code(), absl::Now() - start_time_);
  environment_->finished_calls.fetch_add(1, std::memory_order_relaxed);
  grpc::Status final_status =
      status.ok() ? grpc::Status::OK
                  : RefusalOf(status, *environment_, call_->context());
  absl::MutexLock lock(&mutex_);
  final_status_ = std::move(final_status);
  AdvanceLocked();
}

void StreamCall::OnDone() {
  table_->Remove(this);
  std::shared_ptr<UploadRegistry::Hold> hold;
  {
    absl::MutexLock lock(&mutex_);
    hold = std::move(hold_);
  }
  if (hold != nullptr && !call_->IsCancelled()) hold->Complete();
  hold.reset();
  work_.reset();
  pass_.reset();
  self_.reset();
}

void StreamCall::Touch() {
  absl::MutexLock lock(&mutex_);
  last_move_ = environment_->clock->Now();
}

}  // namespace attention
