// The Session of this client.
#ifndef ATTENTION_CLIENT_CPP_SESSION_IMPL_H_
#define ATTENTION_CLIENT_CPP_SESSION_IMPL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "attention/v1/attention.pb.h"
#include "client/cpp/session.h"
#include "client/cpp/session_caller.h"

namespace attention {

class SessionImpl final : public Session {
 public:
  // Errors are the server's.
  static absl::StatusOr<std::unique_ptr<SessionImpl>> Create(
      const SessionCaller& caller, const SessionOptions& options,
      const Client::CallOptions& call);
  static absl::StatusOr<std::unique_ptr<SessionImpl>> Open(
      const SessionCaller& caller, const std::string& name,
      const Client::CallOptions& call);

  std::string name() const override ABSL_LOCKS_EXCLUDED(mutex_);
  const SessionOptions& options() const override { return options_; }
  int64_t token_count(int32_t layer) const override ABSL_LOCKS_EXCLUDED(mutex_);

  using Session::Append;
  absl::Status Append(absl::Span<const LayerTokens> parts,
                      const Client::CallOptions& call) override;
  absl::StatusOr<AttentionResult> Attend(
      const LayerQueries& queries, const Client::CallOptions& call) override;
  absl::StatusOr<std::unique_ptr<Session>> Fork(
      const ForkOptions& options, const Client::CallOptions& call) override;
  absl::Status Truncate(int64_t token_count,
                        const Client::CallOptions& call) override;
  absl::Status Renew(std::optional<absl::Duration> ttl,
                     const Client::CallOptions& call) override;
  absl::Status Delete(const Client::CallOptions& call) override;
  absl::StatusOr<v1::Session> Refresh(const Client::CallOptions& call) override;
  absl::Status Rebuild(absl::Span<const LayerTokens> history,
                       const Client::CallOptions& call) override;

  // The server has appended so many tokens, or is about to.
  void Advance(int32_t layer, int64_t token_count) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  SessionImpl(const SessionCaller& caller, SessionOptions options,
              const v1::Session& session);

  // Tokens of each layer.
  std::vector<int64_t> token_counts() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes name and counts over.
  void Set(const v1::Session& session) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status AppendOne(const LayerTokens& tokens,
                         const Client::CallOptions& call);

  const SessionCaller caller_;
  const SessionOptions options_;
  mutable absl::Mutex mutex_;
  std::string name_ ABSL_GUARDED_BY(mutex_);
  std::vector<int64_t> token_counts_ ABSL_GUARDED_BY(mutex_);
};

// Whether the error says that the layer has exactly the `token_count` tokens
// that were to be appended at `position`: an answer before this one got lost.
bool IsAppendedAlready(const absl::Status& status, int64_t position,
                       int64_t token_count);

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_SESSION_IMPL_H_
