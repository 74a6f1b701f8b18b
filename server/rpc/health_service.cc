#include "server/rpc/health_service.h"

#include <optional>
#include <string>
#include <utility>

#include "server/engine/error_reason.h"
#include "server/rpc/status_translation.h"

namespace attention {

using ::grpc::health::v1::HealthCheckRequest;
using ::grpc::health::v1::HealthCheckResponse;
using Status = HealthCheckResponse::ServingStatus;

// One Watch. Writes are one at a time: a change during a write is sent after
// it, and of several only the last. All state is guarded by the service's lock;
// operations are started under it, none of which calls back in place.
class HealthService::Watcher : public ServerCall::Handler {
 public:
  Watcher(HealthService* service, ServerCall* call)
      : service_(service), call_(call) {}

  void Start() {
    call_->Bind(this);
    call_->StartRead(&request_);
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
      call_->Finish(
          grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server stops"));
      return;
    }
    const Status status = !known_ ? HealthCheckResponse::SERVICE_UNKNOWN
                          : service_->serving_
                              ? HealthCheckResponse::SERVING
                              : HealthCheckResponse::NOT_SERVING;
    if (sent_ == status) return;
    sent_ = status;
    HealthCheckResponse response;
    response.set_status(status);
    const grpc::Slice slice(response.SerializeAsString());
    writing_ = true;
    call_->StartWrite(grpc::ByteBuffer(&slice, 1));
  }

  void OnReadDone(bool ok) override {
    HealthCheckRequest request;
    ok = ok && grpc::SerializationTraits<HealthCheckRequest>::Deserialize(
                   &request_, &request)
                   .ok();
    if (!ok) {
      return call_->Finish(ToGrpcStatus(
          InvalidRequest("the message is not a valid HealthCheckRequest"),
          std::nullopt));
    }
    known_ = service_->Knows(request.service());
    absl::MutexLock lock(&service_->mutex_);
    service_->watchers_.insert(this);
    AdvanceLocked();
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
    // Otherwise the read is still due, which fails.
    if (service_->watchers_.count(this) > 0) AdvanceLocked();
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
  ServerCall* const call_;
  grpc::ByteBuffer request_;
  bool known_ = false;  // whether the service is one of ours; once it is read
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

grpc::Status HealthService::Check(grpc::ServerContext*,
                                  const HealthCheckRequest* request,
                                  HealthCheckResponse* response) {
  if (!Knows(request->service())) {
    return grpc::Status(grpc::StatusCode::NOT_FOUND,
                        "no such service: " + request->service());
  }
  absl::MutexLock lock(&mutex_);
  response->set_status(serving_ ? HealthCheckResponse::SERVING
                                : HealthCheckResponse::NOT_SERVING);
  return grpc::Status::OK;
}

MethodTable HealthService::Methods() {
  return {{std::string("/") + grpc::health::v1::Health::service_full_name() +
               "/Watch",
           [this](ServerCall* call) { (new Watcher(this, call))->Start(); }}};
}

}  // namespace attention
