// The Sessions of this client.
#ifndef ATTENTION_CLIENT_CPP_SESSIONS_IMPL_H_
#define ATTENTION_CLIENT_CPP_SESSIONS_IMPL_H_

#include <memory>
#include <string>
#include <vector>

#include "client/cpp/session_caller.h"
#include "client/cpp/sessions.h"

namespace attention {

class SessionsImpl final : public Sessions {
 public:
  explicit SessionsImpl(const SessionCaller& caller) : caller_(caller) {}

  absl::StatusOr<std::unique_ptr<Session>> Create(
      const SessionOptions& options, const Client::CallOptions& call) override;
  absl::StatusOr<std::unique_ptr<Session>> Open(
      const std::string& name, const Client::CallOptions& call) override;
  absl::StatusOr<std::vector<v1::Session>> List(
      const Client::CallOptions& call) override;
  absl::StatusOr<DecodeResult> Decode(const DecodeRequest& request,
                                      const Client::CallOptions& call) override;
  void DecodeAsync(const DecodeRequest& request, DecodeDone done,
                   const Client::CallOptions& call) override;
  std::unique_ptr<DecodeStream> OpenDecodeStream(
      const Client::CallOptions& call) override;

 private:
  const SessionCaller caller_;
};

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_SESSIONS_IMPL_H_
