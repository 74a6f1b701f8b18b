#include "server/transport/call_acceptor.h"

#include <utility>

namespace attention {
namespace {

// Calls that may arrive at the same moment without one having to wait until
// another has been taken.
constexpr int kAwaitedCalls = 16;

class Refusal final : public ServerCall::Handler {
 private:
  void OnReadDone(bool) override {}
  void OnDone() override { delete this; }
};

}  // namespace

CallAcceptor::CallAcceptor(MethodTable methods, WriteWatch* writes)
    : methods_(std::move(methods)), writes_(writes) {}

void CallAcceptor::Register(grpc::ServerBuilder& builder) {
  builder.RegisterAsyncGenericService(&service_);
}

void CallAcceptor::Start(grpc::ServerCompletionQueue* queue, EventLoop* loop) {
  loop_ = loop;
  absl::MutexLock lock(&mutex_);
  queue_ = queue;
  for (int i = 0; i < kAwaitedCalls; ++i) {
    ServerCall::Await(&service_, queue_, this);
  }
}

void CallAcceptor::Stop() {
  absl::MutexLock lock(&mutex_);
  queue_ = nullptr;
  mutex_.Await(absl::Condition(
      +[](int* count) { return *count == 0; }, &call_count_));
}

bool CallAcceptor::OnCall(ServerCall* call) {
  {
    absl::MutexLock lock(&mutex_);
    if (queue_ == nullptr) return false;
    ++call_count_;
    ServerCall::Await(&service_, queue_, this);  // in its place
  }
  loop_->Begin();
  const auto method = methods_.find(call->method());
  if (method != methods_.end()) {
    method->second(call);
  } else {
    call->Bind(new Refusal);
    call->Finish(grpc::Status(grpc::StatusCode::UNIMPLEMENTED,
                              "there is no method " + call->method()));
  }
  return true;
}

void CallAcceptor::OnCallGone() {
  loop_->End();
  absl::MutexLock lock(&mutex_);
  --call_count_;
}

}  // namespace attention
