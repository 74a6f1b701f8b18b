#include "server/logging/log.h"

#include <atomic>
#include <functional>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace attention {
namespace {

std::atomic<LogFormat> log_format{LogFormat::kText};

// spdlog brings the sink, the lock and the level; lines come formatted.
spdlog::logger& Logger() {
  static spdlog::logger* logger = [] {
    auto* made = new spdlog::logger(
        "attention", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%v");
    made->flush_on(spdlog::level::trace);
    return made;
  }();
  return *logger;
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
  }
  return spdlog::level::err;
}

const char* Name(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return "debug";
    case LogLevel::kInfo: return "info";
    case LogLevel::kWarning: return "warning";
    case LogLevel::kError: return "error";
  }
  return "error";
}

std::string Timestamp(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d%ET%H:%M:%E6SZ", time, absl::UTCTimeZone());
}

// As it is if a reader can tell where it ends, otherwise quoted and escaped.
std::string TextValue(absl::string_view value) {
  bool plain = !value.empty();
  for (char c : value) {
    plain = plain && absl::ascii_isgraph(c) && c != '"' && c != '\\';
  }
  if (plain) return std::string(value);
  return absl::StrCat("\"", absl::CEscape(value), "\"");
}

void Write(LogLevel level, absl::string_view message, LogFields fields) {
  if (!Logger().should_log(ToSpdlog(level))) return;
  const std::string line =
      FormatLogLine(log_format.load(std::memory_order_relaxed), absl::Now(),
                    level, message, fields);
  // "{}" because the line may itself hold braces.
  Logger().log(ToSpdlog(level), "{}", line);
}

}  // namespace

void InitializeLog(LogFormat format, LogLevel lowest) {
  log_format.store(format, std::memory_order_relaxed);
  Logger().set_level(ToSpdlog(lowest));
}

void LogInfo(absl::string_view message, LogFields fields) {
  Write(LogLevel::kInfo, message, fields);
}

void LogWarning(absl::string_view message, LogFields fields) {
  Write(LogLevel::kWarning, message, fields);
}

void LogError(absl::string_view message, LogFields fields) {
  Write(LogLevel::kError, message, fields);
}

std::string FormatLogLine(LogFormat format, absl::Time time, LogLevel level,
                          absl::string_view message, LogFields fields) {
  if (format == LogFormat::kText) {
    std::string line =
        absl::StrCat(Timestamp(time), " ", Name(level), " ", message);
    for (const LogField& field : fields) {
      absl::StrAppend(&line, " ", field.key, "=", TextValue(field.value));
    }
    return line;
  }
  nlohmann::ordered_json object;
  object["time"] = Timestamp(time);
  object["level"] = Name(level);
  object["message"] = std::string(message);
  for (const LogField& field : fields) {
    object[std::string(field.key)] = field.value;
  }
  return object.dump(/*indent=*/-1, /*indent_char=*/' ', /*ensure_ascii=*/false,
                     nlohmann::ordered_json::error_handler_t::replace);
}

void RateLimitedLog::Warn(absl::string_view event, absl::string_view event_class,
                          const absl::Status& status) {
  const int suppressed = Admit(event_class, absl::Now());
  if (suppressed < 0) return;
  LogWarning(event,
             {{"class", std::string(event_class)},
              {"code", absl::StatusCodeToString(status.code())},
              {"detail", std::string(status.message())},
              {"suppressed", absl::StrCat(suppressed)}});
}

int RateLimitedLog::Admit(absl::string_view event_class, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  auto found = classes_.find(event_class);
  if (found == classes_.end()) {
    found = classes_.emplace(std::string(event_class), Class()).first;
  }
  Class& state = found->second;
  if (now < state.next) {
    ++state.suppressed;
    return -1;
  }
  state.next = now + interval_;
  return std::exchange(state.suppressed, 0);
}

}  // namespace attention
