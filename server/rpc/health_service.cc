#include "server/rpc/health_service.h"

#include <optional>
#include <utility>

namespace attention {

using ::grpc::health::v1::HealthCheckRequest;
using ::grpc::health::v1::HealthCheckResponse;
using Status = HealthCheckResponse::ServingStatus;

// One Watch. Writes are one at a time: a change during a write is sent after
// it, and of several only the last. All state is guarded by the service's lock;
// gRPC's operations are queued under it, which never calls back in place.
class HealthService::Watcher
    : public grpc::ServerWriteReactor<HealthCheckResponse> {
 public:
  Watcher(HealthService* service, bool known)
      : service_(service), known_(known) {
    absl::MutexLock lock(&service_->mutex_);
    service_->watchers_.insert(this);
    AdvanceLocked();
  }

  // For callers that hold the lock by another name.
  void AssertLocked() const ABSL_ASSERT_EXCLUSIVE_LOCK(service_->mutex_) {
    service_->mutex_.AssertHeld();
  }

  // Sends what there is to send, unless a write is under way.
  void AdvanceLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(service_->mutex_) {
    if (writing_ || finished_) return;
    if (service_->ended_ || cancelled_) {
      finished_ = true;
      Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server stops"));
      return;
    }
    const Status status = !known_             ? HealthCheckResponse::SERVICE_UNKNOWN
                          : service_->serving_ ? HealthCheckResponse::SERVING
                                               : HealthCheckResponse::NOT_SERVING;
    if (sent_ == status) return;
    sent_ = status;
    message_.set_status(status);
    writing_ = true;
    StartWrite(&message_);
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&service_->mutex_);
    writing_ = false;
    if (!ok) cancelled_ = true;
    AdvanceLocked();
  }

  void OnCancel() override {
    absl::MutexLock lock(&service_->mutex_);
    cancelled_ = true;
    AdvanceLocked();
  }

  void OnDone() override {
    {
      absl::MutexLock lock(&service_->mutex_);
      service_->watchers_.erase(this);
    }
    delete this;
  }

 private:
  HealthService* const service_;
  const bool known_;
  HealthCheckResponse message_ ABSL_GUARDED_BY(service_->mutex_);
  std::optional<Status> sent_ ABSL_GUARDED_BY(service_->mutex_);
  bool writing_ ABSL_GUARDED_BY(service_->mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(service_->mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(service_->mutex_) = false;
};

HealthService::HealthService(std::vector<std::string> services)
    : services_(services.begin(), services.end()) {}

HealthService::~HealthService() = default;

void HealthService::SetServing(bool serving) {
  absl::MutexLock lock(&mutex_);
  serving_ = serving;
  AdvanceWatchersLocked();
}

void HealthService::EndWatches() {
  absl::MutexLock lock(&mutex_);
  ended_ = true;
  AdvanceWatchersLocked();
}

void HealthService::AdvanceWatchersLocked() {
  for (Watcher* watcher : watchers_) {
    watcher->AssertLocked();
    watcher->AdvanceLocked();
  }
}

bool HealthService::Knows(const std::string& service) const {
  return service.empty() || services_.count(service) > 0;
}

grpc::ServerUnaryReactor* HealthService::Check(
    grpc::CallbackServerContext* context, const HealthCheckRequest* request,
    HealthCheckResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (!Knows(request->service())) {
    reactor->Finish(grpc::Status(grpc::StatusCode::NOT_FOUND,
                                 "no such service: " + request->service()));
    return reactor;
  }
  {
    absl::MutexLock lock(&mutex_);
    response->set_status(serving_ ? HealthCheckResponse::SERVING
                                  : HealthCheckResponse::NOT_SERVING);
  }
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<HealthCheckResponse>* HealthService::Watch(
    grpc::CallbackServerContext*, const HealthCheckRequest* request) {
  return new Watcher(this, Knows(request->service()));
}

}  // namespace attention
