// What the server counts of sessions. Part of Metrics, which see.
#ifndef ATTENTION_SERVER_METRICS_SESSION_METRICS_H_
#define ATTENTION_SERVER_METRICS_SESSION_METRICS_H_

#include <prometheus/counter.h>
#include <prometheus/histogram.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "server/metrics/pool_registry.h"
#include "server/metrics/series.h"
#include "server/metrics/series_by_name.h"

namespace attention {

// Sessions there are = created + forked - deleted - expired.
enum class SessionEvent {
  kCreated,
  kForked,
  kTruncated,
  kDeleted,
  kExpired,
  kLost,      // a batch that appended to it failed
  kEvicted,   // its pages on the device were given up for others
  kRestored,  // of an evicted one, pages came back from the host's memory
};

// Thread-safe.
class SessionMetrics {
 public:
  explicit SessionMetrics(PoolRegistry& registry);

  void Happened(SessionEvent event);
  // A step, or a change of a session. reason: one of error_reason::kAll.
  void Refused(std::string_view reason);
  // A step appended; so many shared pages were copied for that.
  void Appended(int64_t token_count, size_t page_copy_count);
  // Pages went to the host's memory, or came back from there.
  void Spilled(int64_t page_count, int64_t bytes);
  void Restored(int64_t page_count, int64_t bytes);
  // A step attends to tokens of which so many were there before.
  void Found(int64_t token_count);

 private:
  Family<prometheus::Counter>& event_family_;
  std::array<prometheus::Counter*,
             static_cast<size_t>(SessionEvent::kRestored) + 1>
      events_;
  Family<prometheus::Counter>& refused_family_;
  SeriesByName<ReasonSeries, Family<prometheus::Counter>> refused_{
      refused_family_};
  prometheus::Counter& appended_tokens_;
  prometheus::Counter& page_copies_;
  struct Moved {
    prometheus::Counter& pages;
    prometheus::Counter& bytes;
  };

  Family<prometheus::Counter>& moved_pages_;
  Family<prometheus::Counter>& moved_bytes_;
  Moved spilled_;
  Moved restored_;
  prometheus::Histogram& found_tokens_;
};

}  // namespace attention

#endif  // ATTENTION_SERVER_METRICS_SESSION_METRICS_H_
