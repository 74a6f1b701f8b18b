#include "client/cpp/append_call.h"

#include <optional>
#include <utility>

#include "absl/synchronization/notification.h"
#include "client/cpp/append_attempt.h"
#include "client/cpp/attempt.h"
#include "client/cpp/messages.h"

namespace attention {
namespace {

void Wait(CallClock& clock, absl::Duration delay) {
  absl::Notification over;
  const auto wait = clock.RunAfter(delay, [&over] { over.Notify(); });
  over.WaitForNotification();
}

}  // namespace

AppendCall::AppendCall(const SessionCaller& caller, std::string session,
                       const SessionOptions& options,
                       absl::Span<const LayerTokens> parts,
                       absl::Span<const int64_t> token_counts)
    : caller_(caller),
      session_(std::move(session)),
      options_(options),
      plan_(parts, token_counts, TokenBytes(options)) {}

absl::Status AppendCall::Resume(absl::Time deadline) {
  v1::GetSessionRequest request;
  request.set_name(session_);
  const auto response = caller_.Call<v1::GetSessionResponse>(
      "GetSession", Serialize(request),
      {.timeout = deadline - caller_.runner->clock().Now()});
  if (!response.ok()) return response.status();
  return plan_.Skip(response->session().layer_token_counts());
}

absl::Status AppendCall::Run(absl::Duration timeout) {
  CallClock& clock = caller_.runner->clock();
  const absl::Time deadline = clock.Now() + timeout;
  bool resumed_after_taken = false;
  for (int failure_count = 1;; ++failure_count) {
    const int64_t remaining = plan_.remaining_token_count();
    const AppendAttempt::Outcome outcome =
        AppendAttempt(caller_, session_, options_, plan_)
            .Run(deadline - clock.Now());
    if (outcome.status.ok()) return absl::OkStatus();
    if (ErrorReason(outcome.status) == "POSITION_TAKEN" &&
        !resumed_after_taken) {
      // A call before this one got further than it knew.
      resumed_after_taken = true;
    } else {
      const auto delay = RetryDelay(caller_.runner->policy(), failure_count,
                                    CodeForRetry(outcome.status),
                                    outcome.pushback, RandomFraction());
      // An error now says more than a deadline later.
      if (!delay.has_value() || clock.Now() + *delay >= deadline) {
        return outcome.status;
      }
      Wait(clock, *delay);
    }
    if (absl::Status s = Resume(deadline); !s.ok()) return s;
    if (plan_.remaining_token_count() == 0) return absl::OkStatus();
    if (plan_.remaining_token_count() < remaining) failure_count = 0;
  }
}

}  // namespace attention
