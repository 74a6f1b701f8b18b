#include "server/rpc/session_calls.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "server/engine/error_reason.h"
#include "server/rpc/duration_proto.h"
#include "server/rpc/session_proto.h"
#include "server/rpc/tensor_dims.h"

namespace attention {
namespace {

constexpr int kDefaultPageSize = 100;
constexpr int kMaxPageSize = 1000;

// Unset: the request leaves it to the server.
template <typename Request>
absl::StatusOr<std::optional<absl::Duration>> TtlOf(const Request& request) {
  if (!request.has_ttl()) return std::nullopt;
  return ReadDuration("ttl", request.ttl());
}

}  // namespace

absl::Status SessionsAreOff() {
  return WithReason(
      absl::UnimplementedError(
          "sessions are off; the server was started with --session_memory=0"),
      error_reason::kUnsupported);
}

template <typename Response>
absl::Status SessionCalls::Answer(const absl::StatusOr<SessionInfo>& info,
                                  Response& response) const {
  if (!info.ok()) return info.status();
  SetFullSession(*info, devices_[info->device], *response.mutable_session());
  return absl::OkStatus();
}

absl::Status SessionCalls::Handle(const v1::CreateSessionRequest& request,
                                  v1::CreateSessionResponse& response) const {
  if (registry_ == nullptr) return SessionsAreOff();
  const auto config = ReadSessionConfig(request.configuration(), defaults_);
  if (!config.ok()) return config.status();
  const auto ttl = TtlOf(request);
  if (!ttl.ok()) return ttl.status();
  return Answer(
      registry_->Create(owner_, *config,
                        {.reserved_tokens = request.reserved_token_count(),
                         .ttl = ttl->value_or(defaults_.ttl)}),
      response);
}

absl::Status SessionCalls::Handle(const v1::GetSessionRequest& request,
                                  v1::GetSessionResponse& response) const {
  if (registry_ == nullptr) return SessionsAreOff();
  return Answer(registry_->Get(owner_, request.name()), response);
}

absl::Status SessionCalls::Handle(const v1::ListSessionsRequest& request,
                                  v1::ListSessionsResponse& response) const {
  if (registry_ == nullptr) return SessionsAreOff();
  if (request.page_size() < 0 || request.page_size() > kMaxPageSize) {
    return InvalidField("page_size", absl::StrCat("in [0, ", kMaxPageSize, "]"),
                        request.page_size());
  }
  const auto page = registry_->List(
      owner_, request.page_size() > 0 ? request.page_size() : kDefaultPageSize,
      request.page_token());
  if (!page.ok()) return page.status();
  for (const SessionInfo& info : page->sessions) {
    SetSession(info, devices_[info.device], *response.add_sessions());
  }
  response.set_next_page_token(page->next_page_token);
  return absl::OkStatus();
}

absl::Status SessionCalls::Handle(const v1::DeleteSessionRequest& request,
                                  v1::DeleteSessionResponse&) const {
  if (registry_ == nullptr) return SessionsAreOff();
  return registry_->Delete(owner_, request.name());
}

absl::Status SessionCalls::Handle(const v1::RenewSessionRequest& request,
                                  v1::RenewSessionResponse& response) const {
  if (registry_ == nullptr) return SessionsAreOff();
  const auto ttl = TtlOf(request);
  if (!ttl.ok()) return ttl.status();
  return Answer(registry_->Renew(owner_, request.name(), *ttl), response);
}

absl::Status SessionCalls::Handle(const v1::ForkSessionRequest& request,
                                  v1::ForkSessionResponse& response) const {
  if (registry_ == nullptr) return SessionsAreOff();
  const auto ttl = TtlOf(request);
  if (!ttl.ok()) return ttl.status();
  SessionRegistry::ForkOptions options = {
      .reserved_tokens = request.reserved_token_count(), .ttl = *ttl};
  if (request.has_token_count()) options.position = request.token_count();
  return Answer(registry_->Fork(owner_, request.name(), options), response);
}

absl::Status SessionCalls::Handle(const v1::TruncateSessionRequest& request,
                                  v1::TruncateSessionResponse& response) const {
  if (registry_ == nullptr) return SessionsAreOff();
  return Answer(
      registry_->Truncate(owner_, request.name(), request.token_count()),
      response);
}

}  // namespace attention
