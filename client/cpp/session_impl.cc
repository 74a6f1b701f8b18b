#include "client/cpp/session_impl.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "client/cpp/append_call.h"
#include "client/cpp/messages.h"
#include "client/cpp/session_messages.h"

namespace attention {
namespace {

// Below this a stream's own messages would cost more than they overlap.
constexpr size_t kMaxUnaryAppendBytes = size_t{1} << 20;

}  // namespace

bool IsSessionGone(const absl::Status& status) {
  const std::string reason = ErrorReason(status);
  return reason == "SESSION_NOT_FOUND" || reason == "SESSION_LOST";
}

bool IsAppendedAlready(const absl::Status& status, int64_t position,
                       int64_t token_count) {
  int64_t present = 0;
  return ErrorReason(status) == "POSITION_TAKEN" &&
         absl::SimpleAtoi(ErrorFact(status, "token_count"), &present) &&
         present == position + token_count;
}

SessionImpl::SessionImpl(const SessionCaller& caller, SessionOptions options,
                         const v1::Session& session)
    : caller_(caller), options_(std::move(options)) {
  Set(session);
}

absl::StatusOr<std::unique_ptr<SessionImpl>> SessionImpl::Create(
    const SessionCaller& caller, const SessionOptions& options,
    const Client::CallOptions& call) {
  v1::CreateSessionRequest request;
  *request.mutable_configuration() = ToProto(options);
  request.set_reserved_token_count(options.reserved_token_count);
  if (options.ttl.has_value()) *request.mutable_ttl() = ToProto(*options.ttl);
  const auto response = caller.Call<v1::CreateSessionResponse>(
      "CreateSession", Serialize(request), call);
  if (!response.ok()) return response.status();
  return std::unique_ptr<SessionImpl>(
      new SessionImpl(caller, options, response->session()));
}

absl::StatusOr<std::unique_ptr<SessionImpl>> SessionImpl::Open(
    const SessionCaller& caller, const std::string& name,
    const Client::CallOptions& call) {
  v1::GetSessionRequest request;
  request.set_name(name);
  const auto response = caller.Call<v1::GetSessionResponse>(
      "GetSession", Serialize(request), call);
  if (!response.ok()) return response.status();
  absl::StatusOr<SessionOptions> options = OptionsOf(response->session());
  if (!options.ok()) return options.status();
  return std::unique_ptr<SessionImpl>(
      new SessionImpl(caller, *std::move(options), response->session()));
}

std::string SessionImpl::name() const {
  absl::MutexLock lock(&mutex_);
  return name_;
}

int64_t SessionImpl::token_count(int32_t layer) const {
  absl::MutexLock lock(&mutex_);
  // The server says what is wrong with a layer that there is not.
  return layer >= 0 && static_cast<size_t>(layer) < token_counts_.size()
             ? token_counts_[layer]
             : 0;
}

std::vector<int64_t> SessionImpl::token_counts() const {
  absl::MutexLock lock(&mutex_);
  return token_counts_;
}

void SessionImpl::Set(const v1::Session& session) {
  absl::MutexLock lock(&mutex_);
  name_ = session.name();
  token_counts_.assign(session.layer_token_counts().begin(),
                       session.layer_token_counts().end());
  token_counts_.resize(options_.layer_count);
}

void SessionImpl::Advance(int32_t layer, int64_t token_count) {
  absl::MutexLock lock(&mutex_);
  if (layer >= 0 && static_cast<size_t>(layer) < token_counts_.size()) {
    token_counts_[layer] += token_count;
  }
}

absl::Status SessionImpl::Append(absl::Span<const LayerTokens> parts,
                                 const Client::CallOptions& call) {
  if (parts.empty()) return absl::OkStatus();
  const TokenBytes bytes(options_);
  // A count that is out of its range is the server's to refuse.
  if (parts.size() == 1 &&
      (parts[0].token_count < 1 ||
       static_cast<size_t>(parts[0].token_count) <=
           kMaxUnaryAppendBytes / (bytes.key + bytes.value))) {
    return AppendOne(parts[0], call);
  }
  absl::Status status =
      AppendCall(caller_, name(), options_, parts, token_counts())
          .Run(caller_.Timeout(call));
  if (status.ok()) {
    for (const LayerTokens& part : parts) {
      Advance(part.layer, part.token_count);
    }
  }
  return status;
}

absl::Status SessionImpl::AppendOne(const LayerTokens& tokens,
                                    const Client::CallOptions& call) {
  const int64_t position = token_count(tokens.layer);
  absl::Status status = caller_
                            .Call<v1::AppendKeysValuesResponse>(
                                "AppendKeysValues",
                                SerializeAppend(name(), options_, tokens,
                                                position, *caller_.memory),
                                call)
                            .status();
  if (IsAppendedAlready(status, position, tokens.token_count)) {
    status = absl::OkStatus();
  }
  if (status.ok()) Advance(tokens.layer, tokens.token_count);
  return status;
}

absl::StatusOr<AttentionResult> SessionImpl::Attend(
    const LayerQueries& queries, const Client::CallOptions& call) {
  auto response = caller_.Call<v1::AttendSessionResponse>(
      "AttendSession",
      SerializeAttend(name(), options_, queries, *caller_.memory), call);
  if (!response.ok()) return response.status();
  return ResultOf(*std::move(response), options_, queries);
}

absl::StatusOr<std::unique_ptr<Session>> SessionImpl::Fork(
    const ForkOptions& options, const Client::CallOptions& call) {
  v1::ForkSessionRequest request;
  request.set_name(name());
  if (options.token_count.has_value()) {
    request.set_token_count(*options.token_count);
  }
  request.set_reserved_token_count(options.reserved_token_count);
  if (options.ttl.has_value()) *request.mutable_ttl() = ToProto(*options.ttl);
  const auto response = caller_.Call<v1::ForkSessionResponse>(
      "ForkSession", Serialize(request), call);
  if (!response.ok()) return response.status();
  SessionOptions fork_options = options_;
  fork_options.reserved_token_count = options.reserved_token_count;
  fork_options.ttl = FromProto(response->session().ttl());
  return std::unique_ptr<Session>(
      new SessionImpl(caller_, std::move(fork_options), response->session()));
}

absl::Status SessionImpl::Truncate(int64_t token_count,
                                   const Client::CallOptions& call) {
  v1::TruncateSessionRequest request;
  request.set_name(name());
  request.set_token_count(token_count);
  const auto response = caller_.Call<v1::TruncateSessionResponse>(
      "TruncateSession", Serialize(request), call);
  if (response.ok()) Set(response->session());
  return response.status();
}

absl::Status SessionImpl::Renew(std::optional<absl::Duration> ttl,
                                const Client::CallOptions& call) {
  v1::RenewSessionRequest request;
  request.set_name(name());
  if (ttl.has_value()) *request.mutable_ttl() = ToProto(*ttl);
  return caller_
      .Call<v1::RenewSessionResponse>("RenewSession", Serialize(request), call)
      .status();
}

absl::Status SessionImpl::Delete(const Client::CallOptions& call) {
  v1::DeleteSessionRequest request;
  request.set_name(name());
  absl::Status status = caller_
                            .Call<v1::DeleteSessionResponse>(
                                "DeleteSession", Serialize(request), call)
                            .status();
  return ErrorReason(status) == "SESSION_NOT_FOUND" ? absl::OkStatus() : status;
}

absl::StatusOr<v1::Session> SessionImpl::Refresh(
    const Client::CallOptions& call) {
  v1::GetSessionRequest request;
  request.set_name(name());
  auto response = caller_.Call<v1::GetSessionResponse>(
      "GetSession", Serialize(request), call);
  if (!response.ok()) return response.status();
  Set(response->session());
  return std::move(*response->mutable_session());
}

absl::Status SessionImpl::Rebuild(absl::Span<const LayerTokens> history,
                                  const Client::CallOptions& call) {
  absl::Status status = Delete(call);
  // Another server than before may have another name.
  if (!status.ok() && ErrorReason(status) != "WRONG_REPLICA") return status;
  const auto anew = Create(caller_, options_, call);
  if (!anew.ok()) return anew.status();
  {
    const std::string new_name = (*anew)->name();
    absl::MutexLock lock(&mutex_);
    name_ = new_name;
    token_counts_.assign(options_.layer_count, 0);
  }
  return Append(history, call);
}

}  // namespace attention
