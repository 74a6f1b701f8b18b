#include "client/cpp/sessions_impl.h"

#include <utility>

#include "absl/synchronization/notification.h"
#include "client/cpp/decode_call.h"
#include "client/cpp/decode_stream.h"
#include "client/cpp/session_impl.h"

namespace attention {
namespace {

constexpr int kPageSize = 1000;

}  // namespace

absl::StatusOr<std::unique_ptr<Session>> SessionsImpl::Create(
    const SessionOptions& options, const Client::CallOptions& call) {
  return SessionImpl::Create(caller_, options, call);
}

absl::StatusOr<std::unique_ptr<Session>> SessionsImpl::Open(
    const std::string& name, const Client::CallOptions& call) {
  return SessionImpl::Open(caller_, name, call);
}

absl::StatusOr<std::vector<v1::Session>> SessionsImpl::List(
    const Client::CallOptions& call) {
  std::vector<v1::Session> sessions;
  v1::ListSessionsRequest request;
  request.set_page_size(kPageSize);
  do {
    auto response = caller_.Call<v1::ListSessionsResponse>(
        "ListSessions", Serialize(request), call);
    if (!response.ok()) return response.status();
    for (v1::Session& session : *response->mutable_sessions()) {
      sessions.push_back(std::move(session));
    }
    request.set_page_token(response->next_page_token());
  } while (!request.page_token().empty());
  return sessions;
}

absl::StatusOr<DecodeResult> SessionsImpl::Decode(
    const DecodeRequest& request, const Client::CallOptions& call) {
  absl::StatusOr<DecodeResult> result;
  absl::Notification finished;
  DecodeAsync(
      request,
      [&](absl::StatusOr<DecodeResult> answer) {
        result = std::move(answer);
        finished.Notify();
      },
      call);
  finished.WaitForNotification();
  return result;
}

void SessionsImpl::DecodeAsync(const DecodeRequest& request, DecodeDone done,
                               const Client::CallOptions& call) {
  StartDecode(caller_, request, caller_.Timeout(call), std::move(done));
}

std::unique_ptr<DecodeStream> SessionsImpl::OpenDecodeStream(
    const Client::CallOptions& call) {
  return std::make_unique<DecodeStreamImpl>(
      caller_, call.timeout.value_or(absl::InfiniteDuration()));
}

}  // namespace attention
