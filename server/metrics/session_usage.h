// What the sessions of one device hold, as metrics show it.
#ifndef ATTENTION_SERVER_METRICS_SESSION_USAGE_H_
#define ATTENTION_SERVER_METRICS_SESSION_USAGE_H_

#include <cstdint>

namespace attention {

struct SessionUsage {
  struct Pages {
    int64_t used = 0;      // with tokens of at least one session
    int64_t shared = 0;    // with tokens of more than one
    int64_t reserved = 0;  // empty, but promised to a session
    int64_t free = 0;      // empty, and there for anybody
    int64_t spilled = 0;   // with tokens, but in the host's memory
  };

  int64_t session_count = 0;
  int64_t resident_tokens = 0;  // of all layers
  Pages page_count;
  Pages page_bytes;
  int64_t budget_bytes = 0;
  int64_t spill_budget_bytes = 0;
};

// Thread-safe.
class SessionUsageSource {
 public:
  virtual ~SessionUsageSource() = default;
  virtual SessionUsage session_usage() const = 0;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_METRICS_SESSION_USAGE_H_
