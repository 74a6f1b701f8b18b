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
  absl::MutexLock lock(&mutex_);
  takes_calls_ = true;
  lanes_.push_back(std::make_unique<Lane>(this, queue, loop));
  for (int i = 0; i < kAwaitedCalls; ++i) lanes_.back()->Await();
}

void CallAcceptor::Stop() {
  absl::MutexLock lock(&mutex_);
  takes_calls_ = false;
  mutex_.Await(absl::Condition(
      +[](int* count) { return *count == 0; }, &call_count_));
}

bool CallAcceptor::Lane::OnCall(ServerCall* call) {
  {
    absl::MutexLock lock(&acceptor_->mutex_);
    if (!acceptor_->takes_calls_) return false;
    ++acceptor_->call_count_;
    Await();  // in its place
  }
  loop_->Begin();
  const auto method = acceptor_->methods_.find(call->method());
  if (method != acceptor_->methods_.end()) {
    method->second(call);
  } else {
    call->Bind(new Refusal);
    call->Finish(grpc::Status(grpc::StatusCode::UNIMPLEMENTED,
                              "there is no method " + call->method()));
  }
  return true;
}

void CallAcceptor::Lane::OnCallGone() {
  loop_->End();
  absl::MutexLock lock(&acceptor_->mutex_);
  --acceptor_->call_count_;
}

}  // namespace attention
