// What is left to append of the tokens of several layers.
#ifndef ATTENTION_CLIENT_CPP_APPEND_PLAN_H_
#define ATTENTION_CLIENT_CPP_APPEND_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/cpp/session.h"
#include "client/cpp/session_messages.h"

namespace attention {

// Cuts parts into chunks, in order. Refers to the caller's memory. Not
// thread-safe.
class AppendPlan {
 public:
  struct Chunk {
    LayerTokens tokens;
    int64_t position = 0;  // of the first one in its layer
  };

  // `token_counts` has the tokens that each layer has before.
  AppendPlan(absl::Span<const LayerTokens> parts,
             absl::Span<const int64_t> token_counts, const TokenBytes& bytes);

  // Only what is not among the `token_counts` tokens of each layer is left.
  // FailedPrecondition when a layer has more than this plan appends.
  absl::Status Skip(absl::Span<const int64_t> token_counts);

  // The next chunk; nothing when no more is left.
  std::optional<Chunk> Next();

  // All tokens that are left.
  int64_t remaining_token_count() const;

 private:
  TokenBytes bytes_;
  int64_t chunk_tokens_;
  std::vector<Chunk> parts_;  // what is left of each
  size_t next_ = 0;
};

}  // namespace attention

#endif  // ATTENTION_CLIENT_CPP_APPEND_PLAN_H_
