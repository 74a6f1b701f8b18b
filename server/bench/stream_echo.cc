#include "server/bench/stream_echo.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/slice.h"
#include "server/bench/bench_server.h"

namespace attention {
namespace {

// What both kinds of echo do. A caller may send its next message before it is
// known that the answer to the one before has gone.
class StreamEcho {
 public:
  StreamEcho(std::optional<size_t> answer_bytes, MemoryPool* pool)
      : answer_bytes_(answer_bytes), pool_(*pool) {}

 protected:
  virtual ~StreamEcho() = default;
  virtual void Read() = 0;
  virtual void Write(const grpc::ByteBuffer& answer) = 0;
  virtual void End(const grpc::Status& status) = 0;

  void HandleRead(bool ok) {
    absl::MutexLock lock(&mutex_);
    if (!ok || !answer_bytes_.has_value()) {
      closed_ = true;
    } else {
      ++owed_;
    }
    Advance();
    if (!closed_) Read();
  }

  void HandleWritten(bool ok) {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok) closed_ = true;
    Advance();
  }

 private:
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || ended_) return;
    if (closed_) {
      ended_ = true;
      return End(grpc::Status::OK);
    }
    if (owed_ == 0) return;
    absl::StatusOr<Block> block = pool_.Allocate(*answer_bytes_);
    if (!block.ok()) {
      ended_ = closed_ = true;
      return End({grpc::StatusCode::RESOURCE_EXHAUSTED, "out of memory"});
    }
    --owed_;
    writing_ = true;
    answer_ = AnswerFrom(*std::move(block));
    Write(answer_);
  }

  const std::optional<size_t> answer_bytes_;
  MemoryPool& pool_;
  absl::Mutex mutex_;
  int owed_ ABSL_GUARDED_BY(mutex_) = 0;  // answers
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;  // nothing more is read
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ByteBuffer answer_ ABSL_GUARDED_BY(mutex_);
};

class CallbackEcho final
    : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
      private StreamEcho {
 public:
  CallbackEcho(std::optional<size_t> answer_bytes, MemoryPool* pool)
      : StreamEcho(answer_bytes, pool) {
    Read();
  }

 private:
  void Read() override { StartRead(&message_); }
  void Write(const grpc::ByteBuffer& answer) override { StartWrite(&answer); }
  void End(const grpc::Status& status) override { Finish(status); }
  void OnReadDone(bool ok) override { HandleRead(ok); }
  void OnWriteDone(bool ok) override { HandleWritten(ok); }
  void OnDone() override { delete this; }

  grpc::ByteBuffer message_;
};

class QueueEcho final : public ServerCall::Handler, private StreamEcho {
 public:
  QueueEcho(ServerCall* call, MemoryPool* pool)
      : StreamEcho(AnswerBytesOf(call->context()), pool), call_(call) {
    call_->Bind(this);
    Read();
  }

 private:
  void Read() override { call_->StartRead(&message_); }
  void Write(const grpc::ByteBuffer& answer) override {
    call_->StartWrite(answer);
  }
  void End(const grpc::Status& status) override { call_->Finish(status); }
  void OnReadDone(bool ok) override { HandleRead(ok); }
  void OnWriteDone(bool ok) override { HandleWritten(ok); }
  void OnDone() override { delete this; }

  ServerCall* const call_;
  grpc::ByteBuffer message_;
};

}  // namespace

std::optional<size_t> AnswerBytesOf(const grpc::ServerContextBase& context) {
  const auto found = context.client_metadata().find(kAnswerBytesKey);
  size_t bytes = 0;
  if (found == context.client_metadata().end() ||
      !absl::SimpleAtoi(
          absl::string_view(found->second.data(), found->second.size()),
          &bytes)) {
    return std::nullopt;
  }
  return bytes;
}

grpc::ByteBuffer AnswerFrom(Block block) {
  void* const data = block.data();
  const size_t size = block.size();
  auto* owner = new Block(std::move(block));
  const grpc::Slice slice(
      data, size, [](void* p) { delete static_cast<Block*>(p); }, owner);
  return grpc::ByteBuffer(&slice, 1);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StartStreamEcho(
    const grpc::ServerContextBase& context, MemoryPool* pool) {
  return new CallbackEcho(AnswerBytesOf(context), pool);
}

MethodTable StreamEchoMethods(MemoryPool* pool) {
  return {{"/attention.v1.AttentionService/StreamDecode",
           [pool](ServerCall* call) { new QueueEcho(call, pool); }}};
}

}  // namespace attention
