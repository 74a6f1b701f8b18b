// What a session is, to those who open and use one.
//
// A session has the keys and values of one context, for each of its layers, on
// one device. Its layers have lengths of their own: a decoder appends to one
// after the other.
#ifndef ATTENTION_SERVER_SESSIONS_SESSION_H_
#define ATTENTION_SERVER_SESSIONS_SESSION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/paged_params.h"
#include "server/engine/kv_cache.h"

namespace attention {

inline constexpr int32_t kMaxLayerCount = 1024;
// Of one layer: far more than any device holds, and no sum overflows.
inline constexpr int64_t kMaxLayerTokens = int64_t{1} << 40;
inline constexpr absl::Duration kDefaultSessionTtl = absl::Minutes(10);
inline constexpr absl::Duration kLongestSessionTtl = absl::Hours(24 * 365);

// What all layers of a session have in common. Does not change.
struct SessionConfig {
  PagedConfig paged;
  int32_t layer_count = 1;  // 1...kMaxLayerCount
  // Keys to the left of a query's own position that it sees, beside the sink
  // tokens; the pages of others are freed when the layer is appended to. Not
  // with kCausalTopLeft, whose queries have no position in the context.
  int64_t window_left = kUnlimitedWindow;
  int64_t sink_tokens = 0;  // only with a window
  // [kv_head_count] for kFloat8E4M3: finite, more than 0. Else empty.
  std::vector<float> key_scales;
  std::vector<float> value_scales;
};

// INVALID_ARGUMENT naming the field, the value and the bound.
absl::Status ValidateSessionConfig(const SessionConfig& config);

// A session at some moment.
struct SessionInfo {
  std::string name;
  SessionConfig config;
  int device = 0;  // its place among the server's devices
  int64_t reserved_tokens = 0;
  absl::Duration ttl;
  absl::Time create_time;
  absl::Time expire_time;  // unless it is used or renewed before
  // Tokens of each layer, those that the window has freed included.
  std::vector<int64_t> layer_lengths;
  int64_t resident_tokens = 0;  // of all layers, without freed ones
  int64_t resident_bytes = 0;   // pages, those shared with forks included
  int64_t shared_bytes = 0;     // pages that forks or their origin have as well
  // A batch that appended to it failed: it can only be deleted.
  bool is_lost = false;
};

// A session that a request is about to use.
struct SessionUse {
  std::shared_ptr<const SessionConfig> config;
  std::shared_ptr<KvLayer> layer;  // for KvStep::layer
  int64_t layer_length = 0;  // at this moment: steps on their way change it
  int device = 0;            // for AttentionWork::required_device
};

}  // namespace attention

#endif  // ATTENTION_SERVER_SESSIONS_SESSION_H_
