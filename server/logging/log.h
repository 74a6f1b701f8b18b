// The server's log: one line per event on stderr, as text or as JSON.
//
//   LogInfo("listening", {{"address", address}});
//
// gives, depending on the format,
//
//   2026-01-31T12:00:00.123456Z info listening address=127.0.0.1:50051
//   {"time":"2026-01-31T12:00:00.123456Z","level":"info","message":"listening",
//    "address":"127.0.0.1:50051"}
//
// (on one line). Values may hold any bytes: text quotes what is not plain, JSON
// escapes it and replaces invalid UTF-8. Requests are not logged one by one;
// metrics count them. Thread-safe.
#ifndef ATTENTION_SERVER_LOGGING_LOG_H_
#define ATTENTION_SERVER_LOGGING_LOG_H_

#include <initializer_list>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace attention {

enum class LogFormat { kText, kJson };
enum class LogLevel { kDebug, kInfo, kWarning, kError };

struct LogField {
  absl::string_view key;
  std::string value;
};
using LogFields = std::initializer_list<LogField>;

// Until called, lines of kInfo and above are written as text.
void InitializeLog(LogFormat format, LogLevel lowest);

void LogInfo(absl::string_view message, LogFields fields = {});
void LogWarning(absl::string_view message, LogFields fields = {});
void LogError(absl::string_view message, LogFields fields = {});

// One line as it is written, without the line break.
std::string FormatLogLine(LogFormat format, absl::Time time, LogLevel level,
                          absl::string_view message, LogFields fields);

// Lets through one line per class and interval, so that a flood of refusals
// does not become a flood of lines. The next line says how many were dropped.
// Thread-safe. The number of classes is up to the caller and must be bounded.
class RateLimitedLog {
 public:
  explicit RateLimitedLog(absl::Duration interval = absl::Seconds(10))
      : interval_(interval) {}

  // Warns about `event`, e.g. "request refused", with fields "class",
  // "suppressed" and the status.
  void Warn(absl::string_view event, absl::string_view event_class,
            const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  // The decision alone: -1 to drop the line, otherwise how many lines of the
  // class were dropped since the last one.
  int Admit(absl::string_view event_class, absl::Time now)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Class {
    absl::Time next = absl::InfinitePast();
    int suppressed = 0;
  };

  const absl::Duration interval_;
  absl::Mutex mutex_;
  std::map<std::string, Class, std::less<>> classes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attention

#endif  // ATTENTION_SERVER_LOGGING_LOG_H_
