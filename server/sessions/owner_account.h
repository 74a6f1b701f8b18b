// How many tokens an owner has, and may have.
#ifndef ATTENTION_SERVER_SESSIONS_OWNER_ACCOUNT_H_
#define ATTENTION_SERVER_SESSIONS_OWNER_ACCOUNT_H_

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/engine/error_reason.h"

namespace attention {

// Thread-safe: the sessions of an owner may be on several devices.
class OwnerAccount {
 public:
  explicit OwnerAccount(int64_t max_tokens) : max_tokens_(max_tokens) {}

  // QUOTA_EXCEEDED, and nothing is added, when they would be too many.
  absl::Status Add(int64_t tokens) {
    int64_t now = tokens_.load(std::memory_order_relaxed);
    do {
      if (tokens > max_tokens_ - now) {
        return WithReason(
            absl::ResourceExhaustedError(absl::StrCat(
                "an owner may have ", max_tokens_,
                " tokens, counted per layer, resident or reserved; got ",
                tokens, " on top of ", now)),
            error_reason::kQuotaExceeded);
      }
    } while (!tokens_.compare_exchange_weak(now, now + tokens,
                                            std::memory_order_relaxed));
    return absl::OkStatus();
  }

  void Remove(int64_t tokens) {
    tokens_.fetch_sub(tokens, std::memory_order_relaxed);
  }

  int64_t tokens() const { return tokens_.load(std::memory_order_relaxed); }

 private:
  const int64_t max_tokens_;
  std::atomic<int64_t> tokens_{0};
};

}  // namespace attention

#endif  // ATTENTION_SERVER_SESSIONS_OWNER_ACCOUNT_H_
