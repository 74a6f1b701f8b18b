#include "server/rpc/append_stream.h"

#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpcpp/support/slice.h"
#include "server/engine/error_reason.h"
#include "server/rpc/session_proto.h"
#include "server/rpc/session_support.h"
#include "server/rpc/step_encoder.h"
#include "server/rpc/tensor_dims.h"
#include "server/scheduling/exit_status.h"

namespace attention {
namespace {

// Chunks of one stream that wait or are copied and computed: enough that a
// device always has one while the next one arrives.
constexpr size_t kMaxChunksUnderWay = 4;

}  // namespace

class AppendStream::Chunk final : public WorkGroup::Owner {
 public:
  Chunk(std::shared_ptr<AppendStream> stream, int64_t index, StepsPlan plan)
      : stream_(std::move(stream)), index_(index), plan_(std::move(plan)) {}

  WorkGroup& works() { return works_; }

 private:
  void OnWorksDone() override {
    stream_->OnChunkDone(
        index_, CommonError(plan_, false, absl::MakeSpan(works_.results())));
  }

  const std::shared_ptr<AppendStream> stream_;
  const int64_t index_;
  const StepsPlan plan_;
  WorkGroup works_;
};

void AppendStream::Start(ServerCall* call, CallEnvironment* environment,
                         StreamTable* table) {
  auto stream = std::make_shared<AppendStream>(call, environment, table);
  stream->self_ = stream;
  stream->pass_ = environment->gate.Enter();
  environment->started_calls.fetch_add(1, std::memory_order_relaxed);
  environment->metrics->RequestStarted();
  table->Add(stream);
  call->Bind(stream.get());
  stream->Advance();
}

AppendStream::AppendStream(ServerCall* call, CallEnvironment* environment,
                           StreamTable* table)
    : call_(call),
      environment_(environment),
      table_(table),
      start_time_(absl::Now()),
      last_move_(environment->clock->Now()) {}

void AppendStream::OnReadDone(bool ok) {
  absl::Status status;
  if (ok) {
    environment_->metrics->BytesReceived(read_.Length());
    status = Take();
  } else if (call_->IsCancelled()) {
    status = CallerLeft(call_->context());
  }
  if (!status.ok()) Fail(taken_, status);
  {
    absl::MutexLock lock(&mutex_);
    last_move_ = environment_->clock->Now();
    reading_ = false;
    closed_ |= !ok;
  }
  Advance();
}

absl::Status AppendStream::Take() {
  auto message = std::make_shared<WireMessage>(read_);
  read_.Clear();  // the slices hold the memory now
  if (!tenant_.has_value()) {
    absl::StatusOr<std::string> tenant = TenantOf(call_->context());
    if (!tenant.ok()) return tenant.status();
    tenant_ = *std::move(tenant);
  }
  MessageArena arena;
  absl::StatusOr<ScannedAppend> scanned =
      ScanAppendRequest(message->fragments, arena);
  if (!scanned.ok()) return scanned.status();
  if (auto s = CheckFirst(*scanned->metadata); !s.ok()) return s;
  absl::StatusOr<DecodedSteps> decoded =
      DecodeStepsOf(*tenant_, ReadSteps(*std::move(scanned)), *environment_);
  if (!decoded.ok()) return decoded.status();
  AttentionWork& work = *decoded->works.front();
  work.payload_owner = std::move(message);
  work.tenant = *tenant_;
  work.deadline = DeadlineOf(call_->context());

  const int64_t index = taken_++;
  auto chunk = std::make_shared<Chunk>(shared_from_this(), index,
                                       std::move(decoded->plan));
  {
    absl::MutexLock lock(&mutex_);
    if (!error_.ok()) return absl::OkStatus();
    config_ = work.config;
    chunks_[index] = chunk;
  }
  EventLoop::LetOthersPoll();  // it may be computed here
  chunk->works().Start(environment_->scheduler, std::move(decoded->works),
                       chunk);
  return absl::OkStatus();
}

absl::Status AppendStream::CheckFirst(
    const v1::StreamAppendKeysValuesRequest& metadata) {
  if (!metadata.has_expected_position()) {
    return InvalidField("expected_position", "set in a stream", "none");
  }
  if (taken_ == 0) {
    session_ = metadata.session();
    priority_ = metadata.priority();
    return absl::OkStatus();
  }
  if (metadata.session() != session_) {
    return InvalidField(
        "session",
        absl::StrCat("that of the stream's first message, ", session_),
        metadata.session());
  }
  if (metadata.priority() != priority_) {
    return InvalidField(
        "priority",
        absl::StrCat("that of the stream's first message, which is ",
                     priority_),
        metadata.priority());
  }
  return absl::OkStatus();
}

void AppendStream::OnChunkDone(int64_t index, const absl::Status& status) {
  if (!status.ok()) Fail(index, status);
  std::shared_ptr<Chunk> chunk;  // outlives the lock: it may be the last to go
  {
    absl::MutexLock lock(&mutex_);
    last_move_ = environment_->clock->Now();
    chunk = std::move(chunks_.extract(index).mapped());
  }
  Advance();
}

void AppendStream::Fail(int64_t index, const absl::Status& status) {
  std::vector<std::shared_ptr<Chunk>> waiting;
  {
    absl::MutexLock lock(&mutex_);
    if (error_.ok() || index < error_index_) {
      error_ = status;
      error_index_ = index;
    }
    for (const auto& [i, chunk] : chunks_) {
      if (i > index) waiting.push_back(chunk);
    }
  }
  // Outside the lock: it may call OnChunkDone.
  for (const auto& chunk : waiting) chunk->works().Cancel();
}

void AppendStream::Advance() {
  absl::Status error;
  {
    absl::MutexLock lock(&mutex_);
    if (ended_) return;
    if (error_.ok() && !closed_) {
      if (!reading_ && chunks_.size() < kMaxChunksUnderWay) {
        reading_ = true;
        call_->StartRead(&read_);
      }
      return;
    }
    if (!chunks_.empty()) return;
    ended_ = true;
    error = error_;
  }
  End(error);
}

absl::StatusOr<grpc::ByteBuffer> AppendStream::Answer() {
  v1::StreamAppendKeysValuesResponse response;
  if (taken_ > 0) {
    const absl::StatusOr<SessionInfo> info =
        environment_->sessions->Get(*tenant_, session_);
    if (!info.ok()) return info.status();
    SetFullSession(*info, environment_->device_names[info->device],
                   *response.mutable_session());
  }
  const grpc::Slice slice(response.SerializeAsString());
  grpc::ByteBuffer answer(&slice, 1);
  environment_->metrics->BytesSent(answer.Length());
  return answer;
}

void AppendStream::End(const absl::Status& error) {
  const absl::StatusOr<grpc::ByteBuffer> answer =
      error.ok() ? Answer() : absl::StatusOr<grpc::ByteBuffer>(error);
  std::optional<HeadConfig> config;
  {
    absl::MutexLock lock(&mutex_);
    config = config_;
  }
  // Before Finish, as in UnaryCall.
  environment_->metrics->RequestFinished(config ? &*config : nullptr,
                                         answer.status().code(),
                                         absl::Now() - start_time_);
  environment_->finished_calls.fetch_add(1, std::memory_order_relaxed);
  if (answer.ok()) return call_->WriteAndFinish(*answer);
  call_->Finish(RefusalOf(answer.status(), *environment_, call_->context()));
}

void AppendStream::OnCancel() {
  Fail(-1, CallerLeft(call_->context()));
  Advance();
}

void AppendStream::EndIfIdleSince(absl::Time limit) {
  {
    absl::MutexLock lock(&mutex_);
    if (ended_ || !chunks_.empty() || last_move_ > limit) return;
  }
  Fail(0, WithReason(absl::AbortedError("nothing has come on the stream for "
                                        "too long"),
                     error_reason::kStreamIdle));
  Advance();
}

void AppendStream::EndForDrain() {
  {
    absl::MutexLock lock(&mutex_);
    if (ended_ || closed_) return;
  }
  Fail(std::numeric_limits<int64_t>::max(), DrainingStatus());
  Advance();
}

void AppendStream::OnDone() {
  table_->Remove(this);
  pass_.reset();
  self_.reset();
}

}  // namespace attention
