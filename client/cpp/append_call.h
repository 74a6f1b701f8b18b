// Appends many tokens over a stream, and goes on when the stream breaks.
#ifndef ATTENTION_CLIENT_CPP_APPEND_CALL_H_
#define ATTENTION_CLIENT_CPP_APPEND_CALL_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/cpp/append_plan.h"
#include "client/cpp/session.h"
#include "client/cpp/session_caller.h"

namespace attention {

// One use of StreamAppendKeysValues with its attempts. Not thread-safe.
class AppendCall {
 public:
  // `token_counts` has the tokens that each layer has before. Options and
  // tokens outlive the call.
  AppendCall(const SessionCaller& caller, std::string session,
             const SessionOptions& options, absl::Span<const LayerTokens> parts,
             absl::Span<const int64_t> token_counts);

  // Waits until all tokens are there, or it cannot go on. An attempt that the
  // server has got further with than the one before does not count towards the
  // limit of attempts.
  absl::Status Run(absl::Duration timeout);

 private:
  // Skips what the server has.
  absl::Status Resume(absl::Time deadline);

  const SessionCaller caller_;
  const std::string session_;
  const SessionOptions& options_;
  AppendPlan plan_;
};

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_APPEND_CALL_H_
