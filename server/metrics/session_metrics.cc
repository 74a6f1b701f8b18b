#include "server/metrics/session_metrics.h"

#include <prometheus/registry.h>

#include "server/engine/error_reason.h"
#include "server/metrics/buckets.h"

namespace attention {
namespace {

const char* ToString(SessionEvent event) {
  switch (event) {
    case SessionEvent::kCreated:
      return "created";
    case SessionEvent::kForked:
      return "forked";
    case SessionEvent::kTruncated:
      return "truncated";
    case SessionEvent::kDeleted:
      return "deleted";
    case SessionEvent::kExpired:
      return "expired";
    case SessionEvent::kLost:
      return "lost";
    case SessionEvent::kEvicted:
      return "evicted";
    case SessionEvent::kRestored:
      return "restored";
  }
  return "";
}

Family<prometheus::Counter>& AddCounter(PoolRegistry& registry,
                                        const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}

}  // namespace

SessionMetrics::SessionMetrics(PoolRegistry& registry)
    : event_family_(AddCounter(registry, "attention_session_events_total",
                               "What became of sessions.")),
      refused_family_(AddCounter(
          registry, "attention_session_refusals_total",
          "Steps and changes of sessions that were refused, by reason.")),
      appended_tokens_(AddCounter(registry,
                                  "attention_session_appended_tokens_total",
                                  "Tokens appended, counted per layer.")
                           .Add({})),
      page_copies_(AddCounter(registry, "attention_session_page_copies_total",
                              "Pages copied because a session appended to one "
                              "that it shared.")
                       .Add({})),
      moved_pages_(AddCounter(registry, "attention_session_moved_pages_total",
                              "Pages that went to the host's memory (spill), "
                              "or came back from there (restore).")),
      moved_bytes_(AddCounter(registry, "attention_session_moved_bytes_total",
                              "Bytes of these pages.")),
      spilled_{moved_pages_.Add({{"direction", "spill"}}),
               moved_bytes_.Add({{"direction", "spill"}})},
      restored_{moved_pages_.Add({{"direction", "restore"}}),
                moved_bytes_.Add({{"direction", "restore"}})},
      found_tokens_(prometheus::BuildHistogram()
                        .Name("attention_session_found_tokens")
                        .Help("Resident tokens that a step attended to without "
                              "their having been sent with it.")
                        .Register(registry)
                        .Add({}, BatchTokenBuckets())) {
  for (size_t i = 0; i < events_.size(); ++i) {
    events_[i] =
        &event_family_.Add({{"event", ToString(static_cast<SessionEvent>(i))}});
  }
  // From the start, so that rates over them are right from the first one on.
  for (std::string_view reason :
       {error_reason::kSessionNotFound, error_reason::kSessionLost,
        error_reason::kPositionTaken, error_reason::kPositionGap,
        error_reason::kKeysFreed, error_reason::kQuotaExceeded,
        error_reason::kCacheFull}) {
    refused_.Of({reason.data(), reason.size()});
  }
}

void SessionMetrics::Happened(SessionEvent event) {
  events_[static_cast<size_t>(event)]->Increment();
}

void SessionMetrics::Refused(std::string_view reason) {
  refused_.Of({reason.data(), reason.size()}).count.Increment();
}

void SessionMetrics::Appended(int64_t token_count, size_t page_copy_count) {
  appended_tokens_.Increment(static_cast<double>(token_count));
  if (page_copy_count > 0) {
    page_copies_.Increment(static_cast<double>(page_copy_count));
  }
}

void SessionMetrics::Spilled(int64_t page_count, int64_t bytes) {
  spilled_.pages.Increment(static_cast<double>(page_count));
  spilled_.bytes.Increment(static_cast<double>(bytes));
}

void SessionMetrics::Restored(int64_t page_count, int64_t bytes) {
  restored_.pages.Increment(static_cast<double>(page_count));
  restored_.bytes.Increment(static_cast<double>(bytes));
}

void SessionMetrics::Found(int64_t token_count) {
  found_tokens_.Observe(static_cast<double>(token_count));
}

}  // namespace attention
