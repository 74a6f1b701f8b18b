// Why a step, or a change of a session, is refused.
#ifndef ATTENTION_SERVER_SESSIONS_KV_ERRORS_H_
#define ATTENTION_SERVER_SESSIONS_KV_ERRORS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/engine/error_reason.h"

namespace attention {

inline absl::Status SessionGone() {
  return WithReason(
      absl::NotFoundError("the session has been deleted or has expired"),
      error_reason::kSessionNotFound);
}

inline absl::Status SessionLost() {
  return WithReason(absl::AbortedError(
                        "a batch that appended to the session, or to one that "
                        "it was forked from, failed: what it holds is unknown"),
                    error_reason::kSessionLost);
}

// Errors of positions tell how many tokens the layer has.

inline absl::Status PositionTaken(int64_t position, int64_t length) {
  return WithFact(
      WithReason(absl::AlreadyExistsError(absl::StrCat(
                     "expected_position ", position,
                     " is taken: the layer has ", length, " tokens")),
                 error_reason::kPositionTaken),
      error_fact::kTokenCount, absl::StrCat(length));
}

// `what` is beyond the layer.
inline absl::Status PositionGap(absl::string_view what, int64_t position,
                                int64_t length) {
  return WithFact(WithReason(absl::OutOfRangeError(absl::StrCat(
                                 what, " must be at most the ", length,
                                 " tokens that the layer has; got ", position)),
                             error_reason::kPositionGap),
                  error_fact::kTokenCount, absl::StrCat(length));
}

inline absl::Status KeysFreed(int64_t length) {
  return WithReason(
      absl::OutOfRangeError(absl::StrCat(
          "some of the keys that a query there sees have been freed: of ",
          length,
          " tokens, the session keeps those that its window shows to "
          "the last append and later ones")),
      error_reason::kKeysFreed);
}

}  // namespace attention

#endif  // ATTENTION_SERVER_SESSIONS_KV_ERRORS_H_
