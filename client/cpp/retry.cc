#include "client/cpp/retry.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/strings/numbers.h"

namespace attention {
namespace {

constexpr double kJitter = 0.2;

}  // namespace

Pushback ParsePushback(absl::string_view value) {
  int32_t milliseconds = 0;
  if (!absl::SimpleAtoi(value, &milliseconds) || milliseconds < 0) {
    return {.retry = false};
  }
  return {.retry = true, .delay = absl::Milliseconds(milliseconds)};
}

std::optional<absl::Duration> RetryDelay(
    const RetryPolicy& policy, int attempt, absl::StatusCode code,
    const std::optional<Pushback>& pushback, double random) {
  if (attempt >= policy.max_attempts) return std::nullopt;
  if (code != absl::StatusCode::kUnavailable &&
      !(code == absl::StatusCode::kResourceExhausted && pushback.has_value())) {
    return std::nullopt;
  }
  if (pushback.has_value()) {
    if (!pushback->retry) return std::nullopt;
    // Never earlier than asked for.
    return pushback->delay * (1.0 + kJitter * random);
  }
  const absl::Duration backoff = std::min(
      policy.max_backoff, policy.initial_backoff * std::exp2(attempt - 1));
  return backoff * (1.0 - kJitter + 2.0 * kJitter * random);
}

}  // namespace attention
