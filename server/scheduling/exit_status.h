// The answers to works that do not run.
#ifndef ATTENTION_SERVER_SCHEDULING_EXIT_STATUS_H_
#define ATTENTION_SERVER_SCHEDULING_EXIT_STATUS_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/engine/error_reason.h"

namespace attention {

// Reads "the deadline <how>".
inline absl::Status DeadlineStatus(absl::string_view how) {
  return WithReason(
      absl::DeadlineExceededError(absl::StrCat("the deadline ", how)),
      error_reason::kDeadlineExceeded);
}

inline absl::Status DrainingStatus() {
  return WithReason(absl::UnavailableError("the server is shutting down"),
                    error_reason::kDraining);
}

}  // namespace attention

#endif  // ATTENTION_SERVER_SCHEDULING_EXIT_STATUS_H_
