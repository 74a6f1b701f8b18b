// When a failed attempt is worth another one.
#ifndef ATTENTION_CLIENT_CPP_RETRY_H_
#define ATTENTION_CLIENT_CPP_RETRY_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace attention {

struct RetryPolicy {
  int max_attempts = 4;  // the first included
  // Without a pushback, attempt n waits initial_backoff * 2^(n - 1), at most
  // max_backoff, give or take a fifth.
  absl::Duration initial_backoff = absl::Milliseconds(100);
  absl::Duration max_backoff = absl::Seconds(5);
};

// What the server says in the trailer `grpc-retry-pushback-ms`.
struct Pushback {
  bool retry = true;  // false: do not try again
  absl::Duration delay;
};

// A value that is not a number counts, as gRPC has it, as "do not retry".
Pushback ParsePushback(absl::string_view value);

// How long to wait before the next attempt after attempt number `attempt` (from
// 1) ended in `code`; nullopt: give up.
//
// UNAVAILABLE is retried. RESOURCE_EXHAUSTED is retried only with a pushback:
// without one the request itself is too large, or the server does not know when
// it will have room. `random` in [0, 1) spreads callers that failed together.
std::optional<absl::Duration> RetryDelay(
    const RetryPolicy& policy, int attempt, absl::StatusCode code,
    const std::optional<Pushback>& pushback, double random);

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_RETRY_H_
